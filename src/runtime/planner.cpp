#include "runtime/planner.h"

#include <algorithm>

#include "plan/order.h"

namespace monomoe {
namespace {

constexpr int64_t kRowUnit{128};  // rows of user-visible sizes are counted in tiles of this many

Dims dims_of(int32_t ranks, int32_t rank, int64_t tokens, int64_t experts, int64_t top_k) {
  Dims d{};
  d.ranks = ranks;
  d.rank = rank;
  d.tokens = static_cast<int32_t>(tokens);
  d.experts = static_cast<int32_t>(experts);
  d.top_k = static_cast<int32_t>(top_k);
  return d;
}

/// Row tiles that any rank may receive: all routes, and a gap for each of its experts.
int64_t tile_capacity(const Dims& d, const TileShape& t, int64_t group_tokens) {
  Dims first{d};
  first.rank = 0;  // owns the most experts
  return row_capacity(first, t, group_tokens) / t.rows;
}

Wanted wanted_of(const Call& c) {
  Wanted w{};
  if (!c.backward) return w;
  w.gate_up = c.grads.gate.given();
  w.down = c.grads.down.given();
  w.shared_gate_up = c.grads.shared_gate.given();
  w.shared_down = c.grads.shared_down.given();
  w.score = c.grads.shared_score.given();
  w.empty_experts = !c.accumulate;
  return w;
}

/// May an expert have more than one chunk? Exact if the counts are known here.
bool may_chunk(const Plan& p, const PlanTraits& traits, int64_t capacity) {
  if (!traits.tables_on_host) return capacity > p.knobs.piece_tiles;
  for (int32_t e{0}; e < p.dims.local_experts(); ++e) {
    if (p.tables.tile_start[e + 1] - p.tables.tile_start[e] > p.knobs.piece_tiles) return true;
  }
  return false;
}

}  // namespace

std::vector<RankTables> rank_tables(const Group::Impl& group, const Schedule& s) {
  std::vector<RankTables> out;
  int64_t tokens{0};
  for (const int64_t t : s.tokens_per_rank) tokens += t;
  auto* words = static_cast<int32_t*>(s.tables.data);
  int64_t first{0};
  for (int32_t r{0}; r < group.ranks; ++r) {
    const int64_t own{s.tokens_per_rank[static_cast<size_t>(r)]};
    const Dims d{dims_of(group.ranks, r, own, s.experts, s.top_k)};
    const TableLayout l{table_layout(d, group.tile, tokens)};
    out.push_back({d, view_tables(words, l, d), words, first});
    words += l.words;
    first += own;
  }
  return out;
}

int64_t schedule_words(const Group::Impl& group, int64_t tokens, int64_t experts, int64_t top_k) {
  // All tokens at rank 0, none elsewhere; another split rounds up a few words more per rank.
  int64_t words{0};
  for (int32_t r{0}; r < group.ranks; ++r) {
    const Dims d{dims_of(group.ranks, r, r == 0 ? tokens : 0, experts, top_k)};
    words += table_layout(d, group.tile, tokens).words + 8;
  }
  return words;
}

Knobs choose_knobs(const Config& c, const PlanTraits& traits, const TileShape& tile, const Dims& d,
                   int64_t group_tokens, bool backward) {
  const Policy& policy{policy_of(traits.arch)};
  const int64_t capacity{max_of<int64_t>(2, tile_capacity(d, tile, group_tokens))};
  const auto tiles = [](int64_t rows) { return ceil_div(rows, kRowUnit); };
  Knobs k{};
  k.workers = c.workers ? static_cast<int32_t>(*c.workers) : traits.workers;
  k.ring_tiles =
      static_cast<int32_t>(min_of(capacity, tiles(c.ring_rows.value_or(policy.ring_rows))));
  const int64_t minibatch{c.minibatch_rows.value_or(policy.minibatch_rows) / kRowUnit};
  const int64_t half{k.ring_tiles / 2};
  k.piece_tiles = static_cast<int32_t>(backward ? half : min_of(half, minibatch));
  if (c.save != Save::kNone) {
    const int64_t by_default{
        ceil_div(default_save_rows(group_tokens, d.top_k, d.experts, d.ranks, tile.rows),
                 int64_t{tile.rows})};
    k.save_tiles =
        static_cast<int32_t>(min_of(capacity, c.save_rows ? *c.save_rows / kRowUnit : by_default));
  }
  k.save_x = c.save == Save::kAll;
  k.save_shared = c.save != Save::kNone;
  return k;
}

std::vector<RankPlan> make_plans(const Group::Impl& group, const Call& c,
                                 const PlanTraits& traits) {
  std::vector<RankPlan> out;
  int64_t saved_offset{0};
  for (const RankTables& t : rank_tables(group, c.schedule)) {
    RankPlan r;
    Plan& p{r.plan};
    p.dims = t.dims;
    p.dims.hidden = static_cast<int32_t>(c.hidden);
    p.dims.inter = static_cast<int32_t>(c.inter);
    p.dims.shared = static_cast<int32_t>(c.shared);
    p.dims.score = c.score;
    p.tile = group.tile;
    p.knobs = choose_knobs(c.config, traits, group.tile, p.dims, c.tokens, c.backward);
    p.wanted = wanted_of(c);
    p.tables = t.tables;
    p.backward = c.backward;
    p.chain_shared = c.backward && group.ranks > 1;
    r.first_token = t.first_token;
    r.saved = saved_layout(p.dims, p.tile, p.knobs);
    r.saved_offset = saved_offset;
    saved_offset += r.saved.bytes;
    const int64_t capacity{tile_capacity(p.dims, p.tile, c.tokens)};
    const int64_t tiles{traits.tables_on_host ? p.tables.num_tiles() : capacity};
    r.facts = {p.dims,
               p.tile,
               p.knobs.ring_tiles,
               capacity,
               p.backward,
               p.knobs.save_tiles < tiles || !p.knobs.save_shared,
               p.backward && may_chunk(p, traits, capacity) ? p.wgrad_tiles() : 0,
               p.chain_shared ? p.shared_wgrad_tiles() : 0,
               group.hooks.gap_bytes};
    out.push_back(r);
  }
  return out;
}

int64_t most_tickets(const RankPlan& r) {
  const Plan& p{r.plan};
  const int64_t per_tile{int64_t{p.gu_tiles()} + p.inter_tiles() + 2 * p.hidden_tiles()};
  const int64_t chunks{p.dims.local_experts() + r.facts.tile_capacity / p.knobs.piece_tiles};
  const int64_t shared{p.token_tiles() * (int64_t{p.shared_gu_tiles()} + p.shared_inter_tiles() +
                                          2 * p.hidden_tiles() + 2)};
  return r.facts.tile_capacity * per_tile + chunks * p.wgrad_tiles() + shared +
         p.shared_wgrad_tiles();
}

}  // namespace monomoe
