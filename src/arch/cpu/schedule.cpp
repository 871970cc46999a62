#include "arch/cpu/schedule.h"

#include <cstring>

#include "base/expect.h"
#include "plan/tile.h"

namespace monomoe::cpu {
namespace {

/// counts[home * E + e], from ids in token order.
std::vector<int32_t> count_routes(const std::vector<Dims>& dims, const IdsView& ids) {
  const auto experts = static_cast<size_t>(dims[0].experts);
  std::vector<int32_t> counts(dims.size() * experts);
  int64_t token{0};
  for (size_t home{0}; home < dims.size(); ++home) {
    for (int32_t t{0}; t < dims[home].tokens; ++t, ++token) {
      for (int32_t k{0}; k < dims[home].top_k; ++k) {
        const int64_t e{ids.at(token, k)};
        if (e >= 0) ++counts[home * experts + static_cast<size_t>(e)];
      }
    }
  }
  return counts;
}

/// Equal on every rank, different for most other routings.
uint32_t hash_counts(const std::vector<int32_t>& counts) {
  uint32_t h{0};
  for (size_t i{0}; i < counts.size(); ++i) {
    h += hash_term(static_cast<uint32_t>(i), static_cast<uint32_t>(counts[i]));
  }
  return h;
}

/// home_start and tile_start of one rank; returns its routed rows.
int32_t write_starts(const Dims& d, const TileShape& tile, const std::vector<int32_t>& counts,
                     int32_t* home_start, int32_t* tile_start) {
  int32_t total{0};
  tile_start[0] = 0;
  for (int32_t e{0}; e < d.local_experts(); ++e) {
    int32_t rows{0};
    for (int32_t home{0}; home <= d.ranks; ++home) {
      home_start[e * (d.ranks + 1) + home] = rows;
      if (home == d.ranks) break;
      rows += counts[static_cast<size_t>(home) * static_cast<size_t>(d.experts) +
                     static_cast<size_t>(d.first_expert() + e)];
    }
    total += rows;
    tile_start[e + 1] = tile_start[e] + row_tiles(rows, tile);
  }
  return total;
}

/// Writes ids and routes of a home, and its rows into the tables of their owners.
void write_rows(const Dims& d, const TileShape& tile, const IdsView& ids, int64_t first_token,
                const std::vector<int32_t>& owner_of, const std::vector<Dims>& dims,
                const std::vector<int64_t>& row_src_at, std::vector<int32_t>& next,
                const std::vector<int32_t*>& words, int32_t* own_ids, int32_t* routes) {
  std::memset(routes, 0, sizeof(int32_t) * static_cast<size_t>(num_token_blocks(d.tokens, tile)));
  for (int32_t t{0}; t < d.tokens; ++t) {
    for (int32_t k{0}; k < d.top_k; ++k) {
      const auto e = static_cast<int32_t>(ids.at(first_token + t, k));
      own_ids[int64_t{t} * d.top_k + k] = e;
      if (e < 0) continue;
      ++routes[t / tile.sum_tokens];
      const auto owner = static_cast<size_t>(owner_of[static_cast<size_t>(e)]);
      auto* src = reinterpret_cast<RowSource*>(words[owner] + row_src_at[owner]);
      src[next[static_cast<size_t>(e)]++] = {d.rank, t * d.top_k + k};
    }
  }
  expect(dims[static_cast<size_t>(d.rank)].tokens == d.tokens, "homes are walked in rank order");
}

}  // namespace

void build_tables(const std::vector<Dims>& dims, const TileShape& tile, const IdsView& ids,
                  const std::vector<int32_t*>& words) {
  const auto ranks = dims.size();
  int64_t group_tokens{0};
  for (const Dims& d : dims) group_tokens += d.tokens;
  const std::vector<int32_t> counts{count_routes(dims, ids)};
  std::vector<int32_t> owner_of(static_cast<size_t>(dims[0].experts));
  std::vector<int32_t> next(owner_of.size());  // next row of an expert in its owner's row space
  std::vector<int64_t> row_src_at(ranks);
  int32_t max_num_tiles{0};

  for (size_t r{0}; r < ranks; ++r) {
    const Dims& d{dims[r]};
    const TableLayout l{table_layout(d, tile, group_tokens)};
    row_src_at[r] = l.row_src;
    int32_t* tile_start{words[r] + l.tile_start};
    const int32_t rows{write_starts(d, tile, counts, words[r] + l.home_start, tile_start)};
    const int32_t num_tiles{tile_start[d.local_experts()]};
    max_num_tiles = max_of(max_num_tiles, num_tiles);
    for (int32_t e{0}; e < d.local_experts(); ++e) {
      const int32_t expert{d.first_expert() + e};
      owner_of[static_cast<size_t>(expert)] = d.rank;
      next[static_cast<size_t>(expert)] = tile_start[e] * tile.rows;
    }
    auto* src = reinterpret_cast<RowSource*>(words[r] + l.row_src);
    for (int64_t i{0}; i < int64_t{num_tiles} * tile.rows; ++i) src[i] = {RowSource::kGap, 0};
    *reinterpret_cast<TableHeader*>(words[r]) = {
        TableHeader::kMagic, d.ranks,         d.rank,    d.experts, d.top_k, d.tokens,
        tile.rows,           tile.sum_tokens, num_tiles, rows,      0,       hash_counts(counts)};
  }
  int64_t first_token{0};
  for (size_t r{0}; r < ranks; ++r) {
    const TableLayout l{table_layout(dims[r], tile, group_tokens)};
    reinterpret_cast<TableHeader*>(words[r])->max_num_tiles = max_num_tiles;
    write_rows(dims[r], tile, ids, first_token, owner_of, dims, row_src_at, next, words,
               words[r] + l.ids, words[r] + l.routes);
    first_token += dims[r].tokens;
  }
}

}  // namespace monomoe::cpu
