// The integers of one launch on one rank, passed to it by value.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "base/int_math.h"
#include "plan/routing.h"
#include "plan/shape.h"
#include "plan/tile.h"

namespace monomoe {

/// Which gradients of weights a backward computes.
struct Wanted {
  bool gate_up{false};
  bool down{false};
  bool shared_gate_up{false};
  bool shared_down{false};
  bool score{false};
  bool empty_experts{false};  // zeros are written for experts without rows (not accumulating)
};

/// Choices that never change a bit of the results.
struct Knobs {
  int32_t workers{1};
  int32_t ring_tiles{2};   // row tiles of the ring, >= 2
  int32_t piece_tiles{1};  // row tiles of an expert ordered as one piece, <= ring_tiles / 2
  int32_t save_tiles{0};   // row tiles whose pre-activations forward keeps
  bool save_x{false};      // forward keeps dispatched x of the same tiles too
  bool save_shared{true};  // forward keeps the shared expert's pre-activations
};

/// `Tile` is TileShape and `Pass` bool, or FixedTile and a constant in kernels, which then divide
/// by constants and hold the code of one pass only.
template <class Tile, class Pass>
struct BasicPlan {
  Dims dims;
  Tile tile;
  Knobs knobs;
  Wanted wanted;
  Tables tables;
  uint32_t epoch{0};
  Pass backward{};
  bool chain_shared{false};  // local group: shared gradients are added up in rank order

  // Column tiles.
  MONOMOE_HD int32_t gu_tiles() const { return gate_up_tiles(dims.inter, tile); }
  MONOMOE_HD int32_t inter_tiles() const { return col_tiles(dims.inter, tile); }
  MONOMOE_HD int32_t hidden_tiles() const { return col_tiles(dims.hidden, tile); }
  MONOMOE_HD int32_t shared_gu_tiles() const { return gate_up_tiles(dims.shared, tile); }
  MONOMOE_HD int32_t shared_inter_tiles() const { return col_tiles(dims.shared, tile); }

  // Row tiles of weight gradients: gate_up is [2, I, H], gate tiles first; down is [H, I].
  MONOMOE_HD int32_t wgrad_gate_up_rows() const { return 2 * row_tiles(dims.inter, tile); }
  MONOMOE_HD int32_t wgrad_down_rows() const { return row_tiles(dims.hidden, tile); }
  MONOMOE_HD int32_t wgrad_gate_up_tiles() const {
    return wanted.gate_up ? wgrad_gate_up_rows() * hidden_tiles() : 0;
  }
  MONOMOE_HD int32_t wgrad_down_tiles() const {
    return wanted.down ? wgrad_down_rows() * inter_tiles() : 0;
  }
  MONOMOE_HD int32_t wgrad_tiles() const { return wgrad_gate_up_tiles() + wgrad_down_tiles(); }
  MONOMOE_HD int32_t shared_wgrad_gate_up_tiles() const {
    return wanted.shared_gate_up ? 2 * row_tiles(dims.shared, tile) * hidden_tiles() : 0;
  }
  MONOMOE_HD int32_t shared_wgrad_down_tiles() const {
    return wanted.shared_down ? wgrad_down_rows() * shared_inter_tiles() : 0;
  }
  MONOMOE_HD int32_t shared_wgrad_score_tiles() const { return wanted.score ? hidden_tiles() : 0; }
  MONOMOE_HD int32_t shared_wgrad_tiles() const {
    return shared_wgrad_gate_up_tiles() + shared_wgrad_down_tiles() + shared_wgrad_score_tiles();
  }

  // Tokens of this rank.
  MONOMOE_HD int32_t token_tiles() const {
    return dims.shared > 0 ? row_tiles(dims.tokens, tile) : 0;
  }
  MONOMOE_HD int32_t stage_chunks() const { return ceil_div(dims.tokens, tile.stage_tokens); }
  MONOMOE_HD int32_t token_blocks() const { return num_token_blocks(dims.tokens, tile); }

  /// Backward computes gate_up of row tile `n` again.
  MONOMOE_HD bool recomputed(int32_t n) const { return n >= knobs.save_tiles; }
  MONOMOE_HD bool recomputes_shared() const { return backward && !knobs.save_shared; }

  /// Backward has x of every row of every rank already, so nobody stages or pulls it.
  MONOMOE_HD bool all_x_saved() const {
    return knobs.save_x && tables.header->max_num_tiles <= knobs.save_tiles;
  }

  /// Dispatched x of row tile `n` lies in the saved state instead of the ring.
  MONOMOE_HD bool x_in_saved(int32_t n) const { return knobs.save_x && n < knobs.save_tiles; }

  MONOMOE_HD int32_t ring_slot(int32_t n) const {
    return n < knobs.ring_tiles ? n : n % knobs.ring_tiles;
  }

  /// Dispatch tasks of a row tile with `rows` real rows.
  MONOMOE_HD int32_t moves_of(int32_t rows) const {
    return ceil_div(padded_rows(rows, tile), tile.move_rows);
  }
  MONOMOE_HD int32_t rows_of(int32_t expert, int32_t n) const {
    return rows_in_tile(tables, tile, expert, n);
  }
};
using Plan = BasicPlan<TileShape, bool>;

/// A pass as a type; reads like the bool of a Plan.
template <bool kBackward>
struct FixedPass {
  MONOMOE_HD constexpr operator bool() const { return kBackward; }  // NOLINT: implicit on purpose
};
template <bool kBackward>
using FixedPlan = BasicPlan<FixedTile, FixedPass<kBackward>>;

/// The same plan for kernels. Its tile must be the default, its pass `kBackward`.
template <bool kBackward>
MONOMOE_HD FixedPlan<kBackward> fix_plan(const Plan& p) {
  return {p.dims, {}, p.knobs, p.wanted, p.tables, p.epoch, {}, p.chain_shared};
}

/// A run of row tiles of one expert that is ordered as one piece. `begin == end`: an expert
/// without rows.
struct Chunk {
  int32_t expert{0};
  int32_t begin{0};  // row tiles
  int32_t end{0};
};

/// The chunk that holds row tile `n` (n < num_tiles).
template <class P>
MONOMOE_HD Chunk chunk_of_tile(const P& p, int32_t n) {
  const int32_t e{expert_of_tile(p.tables, p.tables.num_experts, n)};
  const int32_t first{p.tables.tile_start[e]};
  const int32_t begin{first + (n - first) / p.knobs.piece_tiles * p.knobs.piece_tiles};
  return {e, begin, min_of(p.tables.tile_start[e + 1], begin + p.knobs.piece_tiles)};
}

/// Does the expert of `c` have more than one chunk? (Its weight gradients spill between them.)
template <class P>
MONOMOE_HD bool is_chunked(const P& p, const Chunk& c) {
  return p.tables.tile_start[c.expert + 1] - p.tables.tile_start[c.expert] > p.knobs.piece_tiles;
}

}  // namespace monomoe
