// describe: one rank's plan, as JSON.
#include <algorithm>
#include <array>
#include <sstream>
#include <vector>

#include "monomoe/layer.h"
#include "plan/order.h"
#include "runtime/cpu_backend.h"
#include "runtime/planner.h"
#include "runtime/validate.h"

namespace monomoe {
namespace {

constexpr int32_t kSms{132};  // of an H100 or H200

/// Writes JSON: names are ours and need no escapes.
class Json {
 public:
  Json& open(char bracket) {
    separate();
    text_ << bracket;
    first_ = true;
    return *this;
  }
  Json& close(char bracket) {
    text_ << bracket;
    first_ = false;
    return *this;
  }
  Json& key(const char* name) {
    separate();
    text_ << '"' << name << "\":";
    first_ = true;  // no comma before the value
    return *this;
  }
  Json& number(int64_t v) {
    separate();
    text_ << v;
    return *this;
  }
  Json& text(const char* v) {
    separate();
    text_ << '"' << v << '"';
    return *this;
  }
  Json& pair(const char* name, int64_t v) { return key(name).number(v); }
  Json& pair(const char* name, const char* v) { return key(name).text(v); }
  [[nodiscard]] std::string str() const { return text_.str(); }

 private:
  void separate() {
    if (!first_) text_ << ',';
    first_ = false;
  }
  std::ostringstream text_;
  bool first_{true};
};

/// A counter and its step or target; flags hold the epoch, which is 1 here.
void write_ref(Json& j, const CounterRef& c, const char* what, int64_t value) {
  j.open('{').pair("counter", name_of(c.id)).pair("rank", c.rank).pair("index", c.index);
  j.pair(what, value).close('}');
}

void write_raises(Json& j, const Plan& p, const Task& t) {
  j.key("raises").open('[');
  if (t.kind == Kind::kStage) {
    write_ref(j, {Counter::kStageFlag, p.dims.rank, t.row}, "by", 1);
  }
  for_each_signal(p, t, [&](const CounterRef& c, int32_t step) { write_ref(j, c, "by", step); });
  j.close(']');
  if (completion_target(p, t.kind) == 0) return;
  // The last column tile to end, whichever it is, sends the rows off.
  j.key("last_raises").open('[');
  for_each_arrival(p, t, [&](const CounterRef& c, int32_t step) { write_ref(j, c, "by", step); });
  j.close(']');
}

void write_task(Json& j, const Plan& p, int32_t ticket, const Task& t) {
  const bool routed{t.kind == Kind::kDispatch || t.kind == Kind::kGateUp || t.kind == Kind::kDown ||
                    t.kind == Kind::kDgradDown || t.kind == Kind::kDgradGateUp};
  const bool wgrad{t.kind == Kind::kWgradGateUp || t.kind == Kind::kWgradDown};
  j.open('{').pair("ticket", ticket).pair("kind", name_of(t.kind));
  if (routed || wgrad) j.pair("expert", p.dims.first_expert() + t.expert);
  j.pair("row", t.row).pair("col", t.col);
  if (wgrad) {
    j.key("row_tiles").open('[').number(t.chunk.begin).number(t.chunk.end).close(']');
  }
  j.key("waits").open('[');
  for_each_wait(p, t,
                [&](const CounterRef& c, int32_t wanted) { write_ref(j, c, "value", wanted); });
  j.close(']');
  write_raises(j, p, t);
  j.close('}');
}

/// Lists the first tickets of each line and counts all.
void write_lines(Json& j, const Plan& p, int64_t listed) {
  std::array<int64_t, kNumKinds> count{};
  Cursor cursor{p};
  j.key("lines").open('[');
  for (int32_t l{0}; l < kNumLines; ++l) {
    const auto line = static_cast<Line>(l);
    j.open('{').pair("line", name_of(line)).key("tasks").open('[');
    int32_t ticket{0};
    for (Task t; cursor.seek(p, line, ticket, &t); ++ticket) {
      ++count[static_cast<size_t>(t.kind)];
      if (ticket < listed) write_task(j, p, ticket, t);
    }
    j.close(']').pair("tickets", ticket).close('}');
  }
  j.close(']').key("tasks").open('{');
  for (size_t k{0}; k < count.size(); ++k) {
    if (count[k] > 0) j.pair(name_of(static_cast<Kind>(k)), count[k]);
  }
  j.close('}');
}

void write_rows(Json& j, const Plan& p) {
  j.key("experts").open('[');
  for (int32_t e{0}; e < p.dims.local_experts(); ++e) {
    j.open('{').pair("expert", p.dims.first_expert() + e);
    j.pair("rows", expert_rows(p.tables, e));
    j.key("row_tiles").open('[').number(p.tables.tile_start[e]).number(p.tables.tile_start[e + 1]);
    j.close(']').close('}');
  }
  j.close(']');
}

void write_memory(Json& j, const RankPlan& r) {
  const Layout l{workspace_layout(r.facts)};
  j.key("memory").open('{').pair("heap_bytes", l.heap_bytes).pair("local_bytes", l.local_bytes);
  j.pair("saved_bytes", r.saved.bytes).key("regions").open('[');
  const auto region = [&](const char* name, const char* where, const Extent& e) {
    if (e.bytes == 0) return;
    j.open('{').pair("name", name).pair("where", where).pair("offset", e.offset);
    j.pair("bytes", e.bytes).close('}');
  };
  for (int32_t i{0}; i < kNumRegions; ++i) {
    region(name_of(static_cast<Region>(i)), i < kNumHeapRegions ? "heap" : "local", l.at[i]);
  }
  region("preact", "saved", r.saved.preact);
  region("x", "saved", r.saved.x);
  region("shared_preact", "saved", r.saved.shared_preact);
  region("score", "saved", r.saved.score);
  j.close(']').close('}').key("counters").open('[');
  for (int32_t i{0}; i < kNumCounters; ++i) {
    const auto c = static_cast<Counter>(i);
    const int64_t n{counter_count(r.facts, c)};
    if (n == 0) continue;
    j.open('{').pair("name", name_of(c)).pair("where", is_heap(c) ? "heap" : "local");
    j.pair("count", n).close('}');
  }
  j.close(']');
}

void write_plan(Json& j, const RankPlan& r, const PlanView& view) {
  const Plan& p{r.plan};
  j.open('{').pair("pass", p.backward ? "backward" : "forward");
  j.pair("backend", view.backend.c_str()).pair("rank", p.dims.rank).pair("ranks", p.dims.ranks);
  j.key("shape").open('{').pair("tokens", p.dims.tokens).pair("hidden", p.dims.hidden);
  j.pair("intermediate", p.dims.inter).pair("experts", p.dims.experts);
  j.pair("top_k", p.dims.top_k).pair("shared", p.dims.shared).close('}');
  j.key("knobs").open('{').pair("workers", p.knobs.workers);
  j.pair("tile_rows", p.tile.rows).pair("tile_cols", p.tile.cols);
  j.pair("ring_rows", int64_t{p.knobs.ring_tiles} * p.tile.rows);
  j.pair("chunk_rows", int64_t{p.knobs.piece_tiles} * p.tile.rows);
  j.pair("save_rows", int64_t{p.knobs.save_tiles} * p.tile.rows).close('}');
  j.pair("rows", p.tables.header->num_rows).pair("row_tiles", p.tables.num_tiles());
  write_rows(j, p);
  write_memory(j, r);
  write_lines(j, p, view.tickets);
  j.close('}');
}

/// A call of which only the sizes matter.
Call sizes_of(const Shape& shape, const Config& config, const PlanView& view, const Schedule& s) {
  Call c;
  c.backward = view.backward;
  c.schedule = s;
  c.config = config;
  c.tokens = shape.tokens;
  c.hidden = shape.hidden;
  c.inter = shape.intermediate;
  c.shared = shape.shared;
  c.score = shape.shared > 0 && view.score;
  Tensor wanted;
  wanted.ndim = 0;
  c.grads.gate = c.grads.up = c.grads.down = wanted;
  if (c.shared > 0) c.grads.shared_gate = c.grads.shared_up = c.grads.shared_down = wanted;
  if (c.score) c.grads.shared_score = wanted;
  return c;
}

}  // namespace

std::string describe(const Tensor& topk_ids, const Shape& shape, const Config& config,
                     const PlanView& view) {
  check_group(shape.ranks, 1.0);
  check_shape(shape, shape.ranks);
  check_config(config);
  check_view(view, shape.ranks);
  const auto group = Group::local(shape.ranks);
  std::vector<int32_t> words(
      static_cast<size_t>(schedule_words(*group, shape.tokens, shape.experts, shape.top_k) + 2));
  int32_t* const aligned{words.data() + reinterpret_cast<uintptr_t>(words.data()) % 8 / 4};
  const Schedule s{contiguous(aligned, DType::kI32, static_cast<int64_t>(words.size()) - 2),
                   shape.experts, shape.top_k, split_tokens(shape.tokens, shape.ranks)};
  schedule(*group, topk_ids, s);
  const PlanTraits traits{view.backend == "cpu" ? cpu_traits()
                                                : PlanTraits{Arch::kSm90, kSms, false}};
  std::vector<RankPlan> plans{make_plans(group->impl(), sizes_of(shape, config, view, s), traits)};
  RankPlan& own{plans[static_cast<size_t>(view.rank)]};
  own.plan.epoch = 1;
  check_tickets(most_tickets(own));
  Json j;
  write_plan(j, own, view);
  return j.str();
}

}  // namespace monomoe
