// Where the operands of a GEMM task lie. The twin of a GPU's load role.
#pragma once

#include <cstdint>

#include "arch/cpu/mma.h"
#include "arch/cpu/rank.h"

namespace monomoe::cpu {

/// Rows of x and dy as GEMM operands, and the memory that the routed and the shared expert have in
/// the same roles.
inline Rows x_rows(const RankLaunch& r, int32_t tile) {
  const int32_t h{r.plan.dims.hidden};
  if (r.plan.x_in_saved(tile)) {
    return {r.saved_region<Bf16>(r.saved_layout.x) + int64_t{tile} * r.plan.tile.rows * h, h, 0};
  }
  return {r.region<Bf16>(Region::kXRing) + r.ring_row(tile) * h, h, 0};
}

inline Rows dy_rows(const RankLaunch& r, int32_t tile) {
  const int32_t h{r.plan.dims.hidden};
  return {r.region<Bf16>(Region::kDyRing) + r.ring_row(tile) * h, h, 0};
}

/// A tile of rows: where its operands and results lie. Made once a task, so that the routed and
/// the shared expert run through the same code.
struct RowTile {
  int32_t rows{0};       // real rows
  int32_t padded{0};     // rows to write, the rest as zero
  int32_t inter{0};      // I or Is
  int32_t col_tiles{0};  // of inter
  Rows x, dy;
  Rows gate, up, down;           // weights
  Bf16* act{nullptr};            // [padded, inter]
  Bf16* grad{nullptr};           // [padded, 2, inter]
  Bf16* preact{nullptr};         // preact_index order; null: not kept
  int64_t preact_row{0};         // row of the tile's first row there
  float* partials{nullptr};      // [rows, col_tiles]
  const float* weight{nullptr};  // per row; null: see score
  const float* score{nullptr};   // per row: weight = sigmoid(score); both null: 1
};

inline RowTile routed_tile(const RankLaunch& r, const Task& t) {
  const Plan& p{r.plan};
  const int64_t ring{r.ring_row(t.row)};
  RowTile out;
  out.rows = p.rows_of(t.expert, t.row);
  out.padded = padded_rows(out.rows, p.tile);
  out.inter = p.dims.inter;
  out.col_tiles = p.inter_tiles();
  out.x = x_rows(r, t.row);
  out.gate = r.weights.gate.of(t.expert);
  out.up = r.weights.up.of(t.expert);
  out.down = r.weights.down.of(t.expert);
  out.act = r.region<Bf16>(Region::kActRing) + ring * p.dims.inter;
  if (!p.recomputed(t.row)) {
    out.preact = r.saved_region<Bf16>(r.saved_layout.preact);
    out.preact_row = int64_t{t.row} * p.tile.rows;
  } else if (p.backward) {
    out.preact = r.region<Bf16>(Region::kPreactRing);
    out.preact_row = ring;
  }
  if (p.backward) {
    out.dy = dy_rows(r, t.row);
    out.grad = r.region<Bf16>(Region::kGradRing) + ring * 2 * p.dims.inter;
    out.partials = r.region<float>(Region::kPartials) + ring * out.col_tiles;
    out.weight = r.region<float>(Region::kWeightRing) + ring;
  }
  return out;
}

inline RowTile shared_tile(const RankLaunch& r, const Task& t) {
  const Plan& p{r.plan};
  const int64_t first{int64_t{t.row} * p.tile.rows};
  RowTile out;
  out.rows = min_of(p.tile.rows, p.dims.tokens - static_cast<int32_t>(first));
  out.padded = padded_rows(out.rows, p.tile);
  out.inter = p.dims.shared;
  out.col_tiles = p.shared_inter_tiles();
  out.x = {r.x.at(first), r.x.row, 0};
  out.gate = r.weights.shared_gate;
  out.up = r.weights.shared_up;
  out.down = r.weights.shared_down;
  out.act = r.region<Bf16>(Region::kSharedAct) + first * p.dims.shared;
  if (p.knobs.save_shared) {
    out.preact = r.saved_region<Bf16>(r.saved_layout.shared_preact);
  } else if (p.backward) {
    out.preact = r.region<Bf16>(Region::kSharedPreact);
  }
  out.preact_row = first;
  if (p.backward) {
    out.dy = {r.dy.at(first), r.dy.row, 0};
    out.grad = r.region<Bf16>(Region::kSharedGrad) + first * 2 * p.dims.shared;
    out.partials = r.region<float>(Region::kSharedPartials) + first * out.col_tiles;
    if (p.dims.score) out.score = r.saved_region<float>(r.saved_layout.score) + first;
  }
  return out;
}

/// Columns of a column tile of width `width` that exist.
inline int32_t cols_in_tile(int32_t width, int32_t tile_cols, int32_t n) {
  return min_of(tile_cols, width - n * tile_cols);
}

/// One wgrad tile: which values of a gradient, and the two row operands it sums over.
struct WgradTile {
  bool gate_up{true};
  int32_t which{0};  // gate_up: 0 = gate, 1 = up
  int32_t row0{0};   // first row of the gradient
  int32_t rows{0};
  int32_t col0{0};
  int32_t cols{0};
};

inline WgradTile wgrad_tile(const Plan& p, bool gate_up, int32_t inter, int32_t m, int32_t n) {
  WgradTile w;
  w.gate_up = gate_up;
  const int32_t height{gate_up ? inter : p.dims.hidden};
  const int32_t width{gate_up ? p.dims.hidden : inter};
  const int32_t tiles{row_tiles(height, p.tile)};
  w.which = m / tiles;
  w.row0 = (m % tiles) * p.tile.rows;
  w.rows = min_of(p.tile.rows, height - w.row0);
  w.col0 = n * p.tile.cols;
  w.cols = min_of(p.tile.cols, width - w.col0);
  return w;
}

}  // namespace monomoe::cpu
