// Combine tasks: the sum over slots. The loader brings the rows of a token's slots through the
// stages; a warpgroup adds them up.
//
// Reads    stages (slots, then shared_out), ids, router weights
// Writes   y or dx, dtopk_weights
// Timeline a stage holds a column chunk of some slots of one token (sum_shape in work.h): token,
//          chunk, slots in order; a thread owns up to two vectors of 8 columns
#pragma once

#include "arch/cuda/bf16.cuh"
#include "arch/cuda/signal.cuh"
#include "arch/sm90/epilogue.cuh"
#include "arch/sm90/load.cuh"
#include "arch/sm90/turn.cuh"

namespace monomoe::sm90 {

/// Scales of a warp's tokens and slots, [token][slot in kLanes], in its staging: an epilogue's, and
/// this is none. Who looks at a loaded id waits for it, so those of a task come at once.
static_assert(FixedTile::sum_tokens * cuda::kLanes * sizeof(float) <= kStagingBytes);

__device__ __forceinline__ float* scales_of(WorkerSmem& s, const Consumer& c) {
  return reinterpret_cast<float*>(s.staging[c.group * 4 + c.warp]);
}

/// Slots k0 + lane of `tokens` tokens from `begin` on, to the rows from `first` on. Lane first + i
/// gets the mask of the i-th token's routed slots; a -1 slot has no scale.
template <class P>
__device__ inline uint32_t stage_scales(const Context<P>& x, WorkerSmem& s, const Consumer& c,
                                        int32_t begin, int32_t tokens, int32_t first, int32_t k0) {
  constexpr int32_t kAtOnce{4};
  const auto& p{x.plan};
  const int32_t k{k0 + c.lane};
  const int32_t slot{min_of(k, p.dims.top_k - 1)};
  float* const to{scales_of(s, c) + c.lane};
  uint32_t own{0};
  __syncwarp();
  MONOMOE_ROLLED
  for (int32_t i{0}; i < tokens; i += kAtOnce) {
    int32_t id[kAtOnce];
    float scale[kAtOnce];
#pragma unroll
    for (int32_t j = 0; j < kAtOnce; ++j) {
      const int32_t token{begin + min_of(i + j, tokens - 1)};
      id[j] = p.tables.ids[int64_t{token} * p.dims.top_k + slot];
      scale[j] = p.backward ? 1.0F : x.launch.topk_weights.at(token, slot);
    }
#pragma unroll
    for (int32_t j = 0; j < kAtOnce; ++j) {
      const uint32_t routed{__ballot_sync(cuda::kFullWarp, k < p.dims.top_k && id[j] >= 0)};
      if (i + j >= tokens) continue;
      if (c.lane == first + i + j) own = routed;
      to[(first + i + j) * cuda::kLanes] = scale[j];
    }
  }
  __syncwarp();
  return own;
}

/// Scale of the shared expert's row.
template <class P>
__device__ inline float shared_scale(const Context<P>& x, int32_t token) {
  const auto& p{x.plan};
  if (p.backward || !p.dims.score) return 1.0F;
  return sigma_of(x, token);
}

constexpr int32_t kSumVectors{kMostSumCols / 8 / kGroupThreads};  // of a thread
using SumAcc = cuda::Eight[kSumVectors];

/// Adds kRows rows that lie behind each other from `from` on, in order.
template <int32_t kRows>
__device__ __forceinline__ void add_some(uint32_t from, uint32_t row_bytes, const float* scales,
                                         SumAcc& acc) {
  uint4 row[kRows][kSumVectors];
#pragma unroll
  for (int32_t i = 0; i < kRows; ++i) {
#pragma unroll
    for (int32_t v = 0; v < kSumVectors; ++v) {
      row[i][v] = ptx::load_shared_16(from + static_cast<uint32_t>(i) * row_bytes +
                                      static_cast<uint32_t>(v * kGroupThreads * 16));
    }
  }
#pragma unroll
  for (int32_t i = 0; i < kRows; ++i) {
#pragma unroll
    for (int32_t v = 0; v < kSumVectors; ++v) cuda::add_scaled(&acc[v], scales[i], row[i][v]);
  }
}

/// Adds up to 32 rows of a stage, those that are routed: four at a time if all of them are. (A
/// thread whose columns don't exist adds others up, for nobody.)
__device__ __forceinline__ void add_rows(uint32_t stage, int32_t rows, int32_t cols,
                                         uint32_t routed, const float* scales, int32_t thread,
                                         SumAcc& acc) {
  constexpr int32_t kAtOnce{4};
  constexpr uint32_t kAll{(1U << kAtOnce) - 1};
  const auto row_bytes = static_cast<uint32_t>(cols * 2);
  uint32_t from{stage + static_cast<uint32_t>(thread * 16)};
  MONOMOE_ROLLED
  for (int32_t first{0}; first < rows;) {
    const uint32_t next{routed >> first};
    if ((next & kAll) == kAll && first + kAtOnce <= rows) {
      add_some<kAtOnce>(from, row_bytes, scales + first, acc);
      first += kAtOnce;
      from += kAtOnce * row_bytes;
    } else {
      if ((next & 1U) != 0) add_some<1>(from, row_bytes, scales + first, acc);
      ++first;
      from += row_bytes;
    }
  }
}

/// The router gradients of a token as they were pushed; 0 for a -1 slot.
template <class P>
__device__ inline void write_router_gradients(const Context<P>& x, int32_t token, int32_t lane) {
  const cuda::Launch& l{x.launch};
  const auto& p{x.plan};
  const Dims& d{p.dims};
  if (!p.backward || l.dtopk_weights.data == nullptr) return;
  for (int32_t k{lane}; k < d.top_k; k += cuda::kLanes) {
    const int64_t slot{int64_t{token} * d.top_k + k};
    l.dtopk_weights.at(token, k) =
        p.tables.ids[slot] >= 0 ? __ldcg(l.heaps[d.rank].slot_scalars + slot) : 0.0F;
  }
}

/// A column chunk is complete: what backward's score adds, one rounding.
template <class P>
__device__ inline void write_chunk(const Context<P>& x, int32_t token, int32_t col0, int32_t cols,
                                   int32_t thread, SumAcc& acc) {
  const cuda::Launch& l{x.launch};
  const auto& p{x.plan};
  if (l.y == nullptr) return;
#pragma unroll
  for (int32_t v = 0; v < kSumVectors; ++v) {
    const int32_t col{(thread + v * kGroupThreads) * 8};
    if (col >= cols) continue;
    if (p.backward && p.dims.score) {
      cuda::add_scaled(&acc[v], l.region<float>(Region::kDscore)[token],
                       *reinterpret_cast<const uint4*>(l.weights.shared_score + col0 + col));
    }
    *reinterpret_cast<uint4*>(l.y + token * l.y_row + col0 + col) = cuda::pack_eight(acc[v]);
  }
}

template <class P>
__device__ inline void combine(const Context<P>& x, WorkerSmem& s, const Consumer& c, const Work& w,
                               StageCursor at, const Turn& turn) {
  const Dims& d{x.plan.dims};
  const SumShape shape{sum_shape(d)};
  const int32_t begin{w.task.row * x.plan.tile.sum_tokens};
  const int32_t end{begin + w.rows};
  const bool few{d.top_k < cuda::kLanes};  // behind the slots, the shared expert's scale
  const uint32_t masks{few ? stage_scales(x, s, c, begin, w.rows, 0, 0) : 0};
  if (few && shape.shared && c.lane < w.rows) {
    scales_of(s, c)[c.lane * cuda::kLanes + d.top_k] = shared_scale(x, begin + c.lane);
  }
  __syncwarp();
  turn.wait();
  MONOMOE_ROLLED
  for (int32_t token{begin}; token < end; ++token) {
    const int32_t row{token - begin};
    const float* const scales{scales_of(s, c) + row * cuda::kLanes};
    MONOMOE_ROLLED
    for (int32_t chunk{0}; chunk < shape.chunks; ++chunk) {
      const int32_t cols{shape.cols_of(d, chunk)};
      SumAcc acc{};
      MONOMOE_ROLLED
      for (int32_t range{0}; range < shape.ranges; ++range) {
        const int32_t k0{range * shape.slots};
        const int32_t rows{shape.slots_of(d, range)};
        ptx::barrier_wait(&s.full[at.stage], at.phase);
        const uint32_t stage{ptx::smem_address(s.stages[at.stage])};
        MONOMOE_ROLLED
        for (int32_t i{0}; i < rows; i += cuda::kLanes) {
          const uint32_t own{few ? masks : stage_scales(x, s, c, token, 1, row, k0 + i)};
          add_rows(stage + static_cast<uint32_t>(i * cols * 2), min_of(rows - i, cuda::kLanes),
                   cols, __shfl_sync(cuda::kFullWarp, own, row), scales, c.thread, acc);
        }
        if (shape.has_shared(range)) {
          const float scale{few ? scales[d.top_k] : shared_scale(x, token)};
          add_rows(stage + static_cast<uint32_t>(rows * cols * 2), 1, cols, 1U, &scale, c.thread,
                   acc);
        }
        c.sync();
        if (c.thread == 0) release_stage(s, at.stage);
        at.next();
      }
      write_chunk(x, token, chunk * shape.cols, cols, c.thread, acc);
    }
    if (c.warp == 0) write_router_gradients(x, token, c.lane);
  }
  // All warps have had their turn: they met at the last stage. What is left is empty.
  if (c.thread != 0) return;
  for (int32_t i{w.rows * shape.chunks * shape.ranges}; i < w.k_blocks; ++i, at.next()) {
    ptx::barrier_wait(&s.full[at.stage], at.phase);
    release_stage(s, at.stage);
  }
  turn.give();
}

}  // namespace monomoe::sm90
