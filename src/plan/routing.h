// The canonical row order and its tables.
//
// Rows of a rank are ordered by (local expert, home rank, token, slot); each expert starts at a
// multiple of the tile rows in "row space". Everything here follows from the ids alone.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "base/int_math.h"
#include "plan/shape.h"

namespace monomoe {

/// Where a row of row space comes from. Gap rows have home == kGap.
struct RowSource {
  static constexpr int32_t kGap{-1};
  int32_t home;  // rank
  int32_t slot;  // token * K + k on that rank
};

/// First words of a rank's tables.
struct TableHeader {
  static constexpr int32_t kMagic{0x4d4d3031};
  int32_t magic;
  int32_t ranks, rank, experts, top_k, tokens;
  int32_t tile_rows, sum_tokens;
  int32_t num_tiles;      // row tiles of this rank
  int32_t num_rows;       // routed rows of this rank, gaps excluded
  int32_t max_num_tiles;  // the largest num_tiles of all ranks
  uint32_t hash;          // of the counts of all ranks: equal on all ranks of one schedule
};

/// One term of the schedule's hash, a sum over (home, expert): any order of adding gives the same.
MONOMOE_HD constexpr uint32_t hash_term(uint32_t index, uint32_t count) {
  uint32_t h{(index * 0x9E3779B9U) ^ (count * 0x85EBCA6BU) ^ (count >> 3U)};
  h = (h ^ (h >> 15U)) * 0x2C1B3C6DU;
  return h ^ (h >> 13U);
}

/// Word offsets of one rank's tables inside the int32 tensor that `schedule` writes.
struct TableLayout {
  int64_t home_start;  // [L, R + 1] first row of a home within the expert; [R] = rows
  int64_t tile_start;  // [L + 1] first row tile of an expert
  int64_t routes;      // [token blocks] routed slots of the block's tokens
  int64_t ids;         // [T, K] the ids as int32
  int64_t row_src;     // [capacity rows] RowSource, two words each
  int64_t words;       // end, a multiple of 4
};

/// Rows of row space a rank may need: it may receive every route of the group.
template <class Tile>
MONOMOE_HD constexpr int64_t row_capacity(const Dims& d, const Tile& t, int64_t group_tokens) {
  return round_up<int64_t>(group_tokens * d.top_k, t.rows) + int64_t{d.local_experts()} * t.rows;
}

template <class Tile>
MONOMOE_HD constexpr int32_t num_token_blocks(int32_t tokens, const Tile& t) {
  return ceil_div(tokens, t.sum_tokens);
}

template <class Tile>
MONOMOE_HD constexpr TableLayout table_layout(const Dims& d, const Tile& t, int64_t group_tokens) {
  TableLayout l{};
  int64_t at{round_up<int64_t>(sizeof(TableHeader) / 4, 4)};
  l.home_start = at;
  at += int64_t{d.local_experts()} * (d.ranks + 1);
  l.tile_start = at;
  at += d.local_experts() + 1;
  l.routes = at;
  at += num_token_blocks(d.tokens, t);
  l.ids = at;
  at += int64_t{d.tokens} * d.top_k;
  l.row_src = round_up<int64_t>(at, 2);
  l.words = round_up<int64_t>(l.row_src + 2 * row_capacity(d, t, group_tokens), 4);
  return l;
}

/// One rank's tables, as every task sees them.
struct Tables {
  const TableHeader* header{nullptr};
  const int32_t* home_start{nullptr};
  const int32_t* rows{nullptr};  // of local expert e at [e * rows_step]
  int32_t rows_step{0};
  int32_t num_experts{0};  // local ones; Dims finds them by division
  const int32_t* tile_start{nullptr};
  const int32_t* routes{nullptr};
  const int32_t* ids{nullptr};
  const RowSource* row_src{nullptr};

  MONOMOE_HD int32_t num_tiles() const { return header->num_tiles; }
};

MONOMOE_HD inline Tables view_tables(const int32_t* words, const TableLayout& l, const Dims& d) {
  return {reinterpret_cast<const TableHeader*>(words),
          words + l.home_start,
          words + l.home_start + d.ranks,
          d.ranks + 1,
          d.local_experts(),
          words + l.tile_start,
          words + l.routes,
          words + l.ids,
          reinterpret_cast<const RowSource*>(words + l.row_src)};
}

/// Rows of local expert `e`.
MONOMOE_HD inline int32_t expert_rows(const Tables& t, int32_t e) {
  return t.rows[e * t.rows_step];
}

/// Local expert that row tile `n` belongs to: the last e with tile_start[e] <= n that has rows.
MONOMOE_HD inline int32_t expert_of_tile(const Tables& t, int32_t num_local, int32_t n) {
  int32_t lo{0};
  int32_t hi{num_local};  // tile_start[lo] <= n < tile_start[hi]
  while (hi - lo > 1) {
    const int32_t mid{lo + (hi - lo) / 2};
    if (t.tile_start[mid] <= n) {
      lo = mid;
    } else {
      hi = mid;
    }
  }
  return lo;
}

/// Real rows of row tile `n` of local expert `e`: 1 .. tile rows.
template <class Tile>
MONOMOE_HD constexpr int32_t rows_in_tile(const Tables& t, const Tile& s, int32_t e, int32_t n) {
  return min_of(s.rows, expert_rows(t, e) - (n - t.tile_start[e]) * s.rows);
}

/// Rows of a tile that are written: the real ones and the zero rows up to the alignment.
template <class Tile>
MONOMOE_HD constexpr int32_t padded_rows(int32_t rows, const Tile& s) {
  return min_of(s.rows, round_up(rows, s.align));
}

}  // namespace monomoe
