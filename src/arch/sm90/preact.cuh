// Where pre-activations lie, in vectors of 16 bytes: in fragment order (task/gate_up.h), so that
// the thread that stored a value is the one that needs it.
#pragma once

#include <cstdint>

#include "arch/cuda/signal.cuh"
#include "arch/sm90/smem_plan.h"

namespace monomoe::sm90 {

using cuda::Context;

constexpr int32_t kPreactVectors{4};  // of 16 bytes a thread, for gate or up of a 64 x 64 block

/// Offset of a thread's vectors of block `block` of 64 columns, in those of a tile; gate first, up
/// kPreactVectors * kGroupThreads behind it.
__device__ __forceinline__ int64_t preact_block(int32_t half, int32_t blocks, int32_t block) {
  return (int64_t{half} * blocks + block) * 2 * kPreactVectors * kGroupThreads;
}

/// First vector of the pre-activations of a task's first 64 rows.
template <class P>
__device__ inline uint4* preact_rows(const Context<P>& x, const Work& w) {
  const cuda::Launch& l{x.launch};
  const auto& p{x.plan};
  int32_t inter{p.dims.inter};
  int64_t row{w.out_row};
  uint4* base{nullptr};
  if (detail::is_shared(w.task.kind)) {
    inter = p.dims.shared;
    base = p.knobs.save_shared ? l.saved_region<uint4>(l.saved_layout.shared_preact)
                               : l.region<uint4>(Region::kSharedPreact);
  } else if (p.recomputed(w.task.row)) {
    base = l.region<uint4>(Region::kPreactRing);
  } else {
    base = l.saved_region<uint4>(l.saved_layout.preact);
    row = int64_t{w.task.row} * p.tile.rows;
  }
  return base + preact_elements(row, inter) / 8;
}

/// Pre-activations of a tile of dgrad_down: of 64 rows one piece, one or two blocks of 64 columns.
struct PreactTile {
  const uint4* data;  // of the first 64 rows
  int64_t half;       // from there to those of the other 64 rows
  int32_t bytes;      // of a piece
};

template <class P>
__device__ inline PreactTile preact_tile(const Context<P>& x, const Work& w) {
  const int32_t inter{detail::is_shared(w.task.kind) ? x.plan.dims.shared : x.plan.dims.inter};
  const int32_t blocks{ceil_div(inter, kPreactBlock)};
  const int32_t first{w.task.col * (FixedTile::cols / kPreactBlock)};
  const int32_t pieces{min_of(FixedTile::cols / kPreactBlock, blocks - first)};
  return {preact_rows(x, w) + preact_block(0, blocks, first), preact_block(1, blocks, 0),
          static_cast<int32_t>(preact_block(0, blocks, pieces) * 16)};
}

}  // namespace monomoe::sm90
