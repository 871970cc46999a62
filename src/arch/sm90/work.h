// A task as the roles of a worker hand it on, and how its operands run through the stages.
#pragma once

#include <cstdint>

#include "arch/cuda/launch.h"
#include "base/hd.h"
#include "plan/graph.h"

namespace monomoe::sm90 {

constexpr int32_t kBlockK{64};    // k of a stage
constexpr int32_t kHalfTile{64};  // rows or columns of a box

/// Which way k runs through the operands. K-major: along the rows of a tensor, in boxes of rows x
/// k. MN-major: down its rows, in boxes of k x columns; then `a_row` and `b_row0` are columns.
enum class Feed : uint8_t {
  kForward,  // both K-major: x and weights
  kDgrad,    // A K-major: dy or dgate, dup; B MN-major: weights
  kWgrad,    // both MN-major: k runs down the rows of tokens
};

/// Which operand the two tiles of a pair have in common. Each block loads one half of it, for both.
enum class Share : uint8_t { kNothing, kA, kB };

/// What the loader loads, what consumers do. Both blocks of a pair get an entry at a time, with as
/// many stages. Small: entries travel between blocks, and shared memory is full.
struct alignas(16) Work {
  static constexpr int32_t kStop{-1};
  static constexpr int32_t kIdle{-2};  // nothing, but stages come and go as in the other block
  int32_t kind;                        // Kind, or one of these
  Share share;
  Feed feed;
  uint8_t a_z;  // wgrads: 0, or 1 for the gradient of up
  uint8_t a_map, b_map0, b_map1;
  uint8_t k_behind;  // stages behind the products: what the epilogue reads, 64 rows each
  Task task;
  int32_t rows;      // real rows of the row tile; combine: tokens
  int32_t padded;    // rows to be written
  int32_t k_blocks;  // stages to be filled; 0: nothing to load
  int32_t a_row;     // first row in A's map
  int32_t b_row0, b_row1;
  int32_t k_turn;   // dgrads: k blocks of a matrix; behind them A lies at z = 1 and B in b_map1
  int32_t k_tile;   // wgrads: first row tile of tokens
  int32_t k_ring;   // wgrads: row tile n lies at n mod k_ring
  int32_t k_saved;  // wgrads: of row tiles below, B lies in b_map1, at n itself
  int64_t out_row;  // first row of the results: ring, saved or token row
};
static_assert(sizeof(Work) == 96);

/// How combine cuts the sum of a token: a stage holds `cols` columns of up to `slots` slots, behind
/// the last slots a row of the shared expert.
constexpr int32_t kSumStageBytes{4 * kHalfTile * kBlockK * 2};
constexpr int32_t kMostSumCols{2048};
constexpr int32_t kMostSumSlots{128};

struct SumShape {
  int32_t cols;
  int32_t chunks;
  int32_t slots;
  int32_t ranges;
  bool shared;

  MONOMOE_HD constexpr int32_t cols_of(const Dims& d, int32_t chunk) const {
    return min_of(cols, d.hidden - chunk * cols);
  }
  MONOMOE_HD constexpr int32_t slots_of(const Dims& d, int32_t range) const {
    return min_of(slots, d.top_k - range * slots);
  }
  MONOMOE_HD constexpr bool has_shared(int32_t range) const {
    return shared && range == ranges - 1;
  }
};

MONOMOE_HD constexpr SumShape sum_shape(const Dims& d) {
  const bool shared{d.shared > 0};
  const int32_t slots{min_of(d.top_k, kMostSumSlots)};
  const int32_t fit{kSumStageBytes / 2 / (slots + (shared ? 1 : 0)) / 8 * 8};
  const int32_t chunks{ceil_div(d.hidden, min_of(kMostSumCols, fit))};
  const int32_t cols{round_up(ceil_div(d.hidden, chunks), 8)};
  return {cols, ceil_div(d.hidden, cols), slots, ceil_div(d.top_k, slots), shared};
}

// The boxes of backward's tasks. A sink gets sink.map(which, is_tall) once for each map, then for
// each k block sink.begin(), what to load of A and of B, and sink.end(). K-major operands are
// loaded by rows from y on, MN-major ones by columns from x on: 128 of them, of A 64 if there are
// no more. One thread runs this on a GPU, in less time than a k block's products take: plain loops
// over a few integers.

template <class Sink>
MONOMOE_HD void walk_dgrad(const Work& w, Sink& sink) {
  const auto a = sink.map(w.a_map, w.rows > kHalfTile);
  const int32_t a_row{w.a_row};
  const int32_t b_col{w.b_row0};
  const int32_t b_z{w.task.expert};
  const int32_t segments{w.k_blocks - w.k_behind > w.k_turn ? 2 : 1};
  const int32_t depth{w.k_turn * kBlockK};
  MONOMOE_ROLLED
  for (int32_t i{0}; i < segments; ++i) {
    const auto b = sink.map(i == 0 ? w.b_map0 : w.b_map1, false);
    MONOMOE_ROLLED
    for (int32_t k{0}; k < depth; k += kBlockK) {
      sink.begin();
      sink.load_a_rows(a, k, a_row, i);
      sink.load_b_cols(b, b_col, k, b_z);
      sink.end();
    }
  }
}

/// Row tiles of tokens in order, two k blocks each.
template <class Sink>
MONOMOE_HD void walk_wgrad(const Work& w, Sink& sink) {
  const auto a = sink.map(w.a_map, false);
  const int32_t a_col{w.a_row};
  const int32_t a_z{w.a_z};
  const int32_t b_col{w.b_row0};
  const int32_t ring{w.k_ring};
  const int32_t saved{w.k_saved};
  int32_t tile{w.k_tile};
  int32_t slot{tile % ring};
  MONOMOE_ROLLED
  for (int32_t left{w.k_blocks}; left > 0; left -= FixedTile::rows / kBlockK) {
    const auto b = sink.map(tile < saved ? w.b_map1 : w.b_map0, false);
    const int32_t a_row{slot * FixedTile::rows};
    const int32_t b_row{(tile < saved ? tile : slot) * FixedTile::rows};
    const auto load = [&](int32_t k) {
      sink.begin();
      sink.load_a_cols(a, a_col, a_row + k, a_z);
      sink.load_b_cols(b, b_col, b_row + k, 0);
      sink.end();
    };
    load(0);
    if (left > 1) load(kBlockK);
    ++tile;
    if (++slot == ring) slot = 0;
  }
}

namespace detail {

MONOMOE_HD constexpr bool is_shared(Kind k) {
  return k >= Kind::kSharedGateUp && k <= Kind::kSharedWgradScore;
}

MONOMOE_HD inline void set_operands(Work* w, cuda::Map a, int32_t a_row, cuda::Map b0, cuda::Map b1,
                                    int32_t k_blocks) {
  w->a_map = static_cast<uint8_t>(a);
  w->a_row = a_row;
  w->b_map0 = static_cast<uint8_t>(b0);
  w->b_map1 = static_cast<uint8_t>(b1);
  w->k_blocks = k_blocks;
}

/// k blocks of a chunk's rows: whole row tiles, the last one up to its padded end.
template <class P>
MONOMOE_HD int32_t chunk_blocks(const P& p, const Chunk& c) {
  if (c.begin == c.end) return 0;
  const int32_t last{padded_rows(p.rows_of(c.expert, c.end - 1), p.tile)};
  return (c.end - c.begin - 1) * (p.tile.rows / kBlockK) + ceil_div(last, kBlockK);
}

/// Weight gradients: rows and columns are those of the gradient, k the rows of tokens.
template <class P>
MONOMOE_HD void describe_wgrad(const P& p, const Task& t, Work* w) {
  using cuda::Map;
  const bool shared{is_shared(t.kind)};
  const bool gate_up{t.kind == Kind::kWgradGateUp || t.kind == Kind::kSharedWgradGateUp};
  const int32_t inter{shared ? p.dims.shared : p.dims.inter};
  const int32_t height{gate_up ? inter : p.dims.hidden};
  const int32_t tiles{row_tiles(height, p.tile)};
  w->feed = Feed::kWgrad;
  w->a_z = gate_up && t.row >= tiles ? 1 : 0;
  const int32_t row0{(t.row - w->a_z * tiles) * p.tile.rows};
  w->rows = min_of(p.tile.rows, height - row0);
  w->b_row0 = t.col * p.tile.cols;
  if (shared) {
    w->k_tile = 0;
    w->k_ring = max_of(1, p.token_tiles());
    w->k_saved = 0;
    const Map b{gate_up ? Map::kX : Map::kSharedAct};
    set_operands(w, gate_up ? Map::kSharedGrad : Map::kDy, row0, b, b,
                 ceil_div(p.dims.tokens, kBlockK));
    return;
  }
  w->k_tile = t.chunk.begin;
  w->k_ring = p.knobs.ring_tiles;
  w->k_saved = gate_up && p.knobs.save_x ? p.knobs.save_tiles : 0;
  set_operands(w, gate_up ? Map::kGrad : Map::kDyRing, row0, gate_up ? Map::kXRing : Map::kAct,
               gate_up ? Map::kXSaved : Map::kAct, chunk_blocks(p, t.chunk));
}

/// Gradients of rows: A's rows begin at `ring` (routed) or `first` (shared).
template <class P>
MONOMOE_HD void describe_dgrad(const P& p, const Task& t, int32_t first, int32_t ring, Work* w) {
  using cuda::Map;
  w->feed = Feed::kDgrad;
  w->b_row0 = t.col * p.tile.cols;
  w->k_turn = ceil_div(p.dims.hidden, kBlockK);
  switch (t.kind) {
    case Kind::kDgradDown:
      set_operands(w, Map::kDyRing, ring, Map::kDown, Map::kDown, w->k_turn);
      break;
    case Kind::kSharedDgradDown:
      set_operands(w, Map::kDy, first, Map::kSharedDown, Map::kSharedDown, w->k_turn);
      break;
    case Kind::kDgradGateUp:
      w->k_turn = ceil_div(p.dims.inter, kBlockK);
      set_operands(w, Map::kGrad, ring, Map::kGate, Map::kUp, 2 * w->k_turn);
      break;
    default:
      w->k_turn = ceil_div(p.dims.shared, kBlockK);
      set_operands(w, Map::kSharedGrad, first, Map::kSharedGate, Map::kSharedUp, 2 * w->k_turn);
      break;
  }
  if (t.kind != Kind::kDgradDown && t.kind != Kind::kSharedDgradDown) return;
  w->k_behind = 2;  // pre-activations
  w->k_blocks += w->k_behind;
}

}  // namespace detail

/// What two tiles of one ticket share.
MONOMOE_HD constexpr Share shared_by(const Task& a, const Task& b) {
  if (a.kind == Kind::kCombine) return Share::kNothing;
  return a.row == b.row ? Share::kA : Share::kB;
}

/// Fills in what the roles need for a task of the main or the combine line.
template <class P>
MONOMOE_HD void describe(const P& p, const Task& t, Work* w) {
  using cuda::Map;
  w->kind = static_cast<int32_t>(t.kind);
  w->share = Share::kNothing;
  w->task = t;
  w->feed = Feed::kForward;
  w->k_blocks = 0;
  w->k_behind = 0;
  if (t.kind == Kind::kCombine) {
    const SumShape sums{sum_shape(p.dims)};
    w->rows = min_of(p.tile.sum_tokens, p.dims.tokens - t.row * p.tile.sum_tokens);
    w->k_blocks = p.tile.sum_tokens * sums.chunks * sums.ranges;
    return;
  }
  const bool shared{detail::is_shared(t.kind)};
  const int32_t first{t.row * p.tile.rows};
  const int32_t ring{p.ring_slot(t.row) * p.tile.rows};
  w->out_row = shared ? first : ring;
  switch (t.kind) {
    case Kind::kWgradGateUp:
    case Kind::kWgradDown:
    case Kind::kSharedWgradGateUp:
    case Kind::kSharedWgradDown:
      detail::describe_wgrad(p, t, w);
      return;
    case Kind::kSharedWgradScore:
      return;
    default:
      break;
  }
  w->rows = shared ? min_of(p.tile.rows, p.dims.tokens - first) : p.rows_of(t.expert, t.row);
  w->padded = padded_rows(w->rows, p.tile);
  const auto k_blocks = [](int32_t depth) { return ceil_div(depth, kBlockK); };
  switch (t.kind) {
    case Kind::kGateUp:
      if (p.x_in_saved(t.row)) {
        detail::set_operands(w, Map::kXSaved, first, Map::kGate, Map::kUp, k_blocks(p.dims.hidden));
      } else {
        detail::set_operands(w, Map::kXRing, ring, Map::kGate, Map::kUp, k_blocks(p.dims.hidden));
      }
      break;
    case Kind::kSharedGateUp:
      detail::set_operands(w, Map::kX, first, Map::kSharedGate, Map::kSharedUp,
                           k_blocks(p.dims.hidden));
      break;
    case Kind::kDown:
      detail::set_operands(w, Map::kAct, ring, Map::kDown, Map::kDown, k_blocks(p.dims.inter));
      break;
    case Kind::kSharedDown:
      detail::set_operands(w, Map::kSharedAct, first, Map::kSharedDown, Map::kSharedDown,
                           k_blocks(p.dims.shared));
      break;
    case Kind::kDgradDown:
    case Kind::kDgradGateUp:
    case Kind::kSharedDgradDown:
    case Kind::kSharedDgradGateUp:
      detail::describe_dgrad(p, t, first, ring, w);
      return;
    default:
      break;
  }
  const bool gate_up{t.kind == Kind::kGateUp || t.kind == Kind::kSharedGateUp};
  w->b_row0 = t.col * (gate_up ? p.tile.cols / 2 : p.tile.cols);
  w->b_row1 = gate_up ? w->b_row0 : w->b_row0 + p.tile.cols / 2;
}

}  // namespace monomoe::sm90
