// An independent oracle for routing tables: sorts routes the plain way, one rank after the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "plan/routing.h"

namespace monomoe::plan_tests {

/// A routing problem of a whole group.
struct Routing {
  std::vector<int32_t> tokens;  // of each rank
  int32_t experts{1};
  int32_t top_k{1};
  std::vector<int32_t> ids;  // [T of all ranks, K], -1 = not routed

  [[nodiscard]] int32_t ranks() const { return static_cast<int32_t>(tokens.size()); }
  [[nodiscard]] int32_t group_tokens() const {
    return std::accumulate(tokens.begin(), tokens.end(), 0);
  }
};

/// One routed row: where it is computed and where it comes from.
struct Route {
  int32_t expert;  // of all
  int32_t home;
  int32_t slot;
  bool operator<(const Route& o) const {
    if (expert != o.expert) return expert < o.expert;
    if (home != o.home) return home < o.home;
    return slot < o.slot;
  }
  bool operator==(const Route& o) const = default;
};

/// All routes in the canonical order.
inline std::vector<Route> sorted_routes(const Routing& r) {
  std::vector<Route> routes;
  size_t at{0};
  for (int32_t home{0}; home < r.ranks(); ++home) {
    const int32_t slots{r.tokens[static_cast<size_t>(home)] * r.top_k};
    for (int32_t slot{0}; slot < slots; ++slot, ++at) {
      if (r.ids[at] >= 0) routes.push_back({r.ids[at], home, slot});
    }
  }
  std::sort(routes.begin(), routes.end());
  return routes;
}

inline Dims dims_of(const Routing& r, int32_t rank) {
  Dims d{};
  d.ranks = r.ranks();
  d.rank = rank;
  d.tokens = r.tokens[static_cast<size_t>(rank)];
  d.experts = r.experts;
  d.top_k = r.top_k;
  return d;
}

/// Fills one rank's tables; max_num_tiles is left to `make_tables`.
inline std::vector<int32_t> make_rank_tables(const Routing& r, const std::vector<Route>& routes,
                                             const TileShape& tile, int32_t rank) {
  const Dims d{dims_of(r, rank)};
  const TableLayout l{table_layout(d, tile, r.group_tokens())};
  std::vector<int32_t> words(static_cast<size_t>(l.words), 0);
  int32_t* const w{words.data()};
  const auto set_source = [&](int32_t row, RowSource src) {
    std::memcpy(w + l.row_src + 2 * row, &src, sizeof(src));
  };

  int32_t tiles{0};
  int32_t num_rows{0};
  for (int32_t e{0}; e < d.local_experts(); ++e) {
    w[l.tile_start + e] = tiles;
    int32_t* const home_start{w + l.home_start + e * (d.ranks + 1)};
    int32_t row{tiles * tile.rows};
    int32_t rows{0};
    for (const Route& route : routes) {
      if (route.expert != d.first_expert() + e) continue;
      for (int32_t h{route.home + 1}; h <= d.ranks; ++h) ++home_start[h];
      set_source(row++, {route.home, route.slot});
      ++rows;
    }
    for (; row % tile.rows != 0; ++row) set_source(row, {RowSource::kGap, 0});
    tiles = row / tile.rows;
    num_rows += rows;
  }
  w[l.tile_start + d.local_experts()] = tiles;

  const int32_t first_token{
      std::accumulate(r.tokens.begin(), r.tokens.begin() + static_cast<std::ptrdiff_t>(rank), 0)};
  for (int32_t i{0}; i < d.tokens * d.top_k; ++i) {
    const int32_t id{r.ids[static_cast<size_t>(first_token * d.top_k + i)]};
    w[l.ids + i] = id;
    if (id >= 0) ++w[l.routes + i / d.top_k / tile.sum_tokens];
  }
  const TableHeader header{
      TableHeader::kMagic, d.ranks,         rank,  d.experts, d.top_k, d.tokens,
      tile.rows,           tile.sum_tokens, tiles, num_rows,  0,       0};
  std::memcpy(w, &header, sizeof(header));
  return words;
}

/// The tables of all ranks.
inline std::vector<std::vector<int32_t>> make_tables(const Routing& r, const TileShape& tile) {
  const std::vector<Route> routes{sorted_routes(r)};
  std::vector<std::vector<int32_t>> all;
  TableHeader header{};
  int32_t max_num_tiles{0};
  for (int32_t rank{0}; rank < r.ranks(); ++rank) {
    all.push_back(make_rank_tables(r, routes, tile, rank));
    std::memcpy(&header, all.back().data(), sizeof(header));
    max_num_tiles = std::max(max_num_tiles, header.num_tiles);
  }
  for (std::vector<int32_t>& words : all) {
    std::memcpy(&header, words.data(), sizeof(header));
    header.max_num_tiles = max_num_tiles;
    std::memcpy(words.data(), &header, sizeof(header));
  }
  return all;
}

}  // namespace monomoe::plan_tests
