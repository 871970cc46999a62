// Combine tasks: the sum over slots, by the 128 threads of a warpgroup.
//
// Reads    slots, shared_out (written during this launch: no read-only loads), ids, weights
// Writes   y or dx, dtopk_weights
// Timeline a warp takes every fourth token of the block; a lane owns 8 columns at a time and has
//          4 slots x 2 x 16 bytes in flight
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "arch/cuda/mover.cuh"
#include "arch/cuda/signal.cuh"

namespace monomoe::cuda {

struct Eight {
  float v[8];
};

__device__ inline float low_half(uint32_t pair) { return __uint_as_float(pair << 16U); }
__device__ inline float high_half(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000U); }
__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 v{__floats2bfloat162_rn(low, high)};
  return reinterpret_cast<const uint32_t&>(v);
}

__device__ inline void add_scaled(Eight* acc, float scale, const uint4& row) {
  const uint32_t words[4]{row.x, row.y, row.z, row.w};
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    acc->v[2 * i] = fmaf(scale, low_half(words[i]), acc->v[2 * i]);
    acc->v[2 * i + 1] = fmaf(scale, high_half(words[i]), acc->v[2 * i + 1]);
  }
}

__device__ inline float sigmoid(float v) { return 1.0F / (1.0F + __expf(-v)); }

/// What a warp needs of a token's slots, lane k for slot first + k: 0 = not routed.
struct SlotScale {
  bool routed;
  float scale;
};

template <class P>
__device__ inline SlotScale load_scale(const Context<P>& x, int32_t token, int32_t k) {
  const auto& p{x.plan};
  const bool routed{k < p.dims.top_k && p.tables.ids[int64_t{token} * p.dims.top_k + k] >= 0};
  if (!routed) return {false, 0.0F};
  return {true, p.backward ? 1.0F : x.launch.topk_weights.at(token, k)};
}

/// Adds slots [k0, k0 + kSlots) of `kChunks` chunks of 8 columns, 32 chunks apart, to `acc`; all
/// loads are in flight before the first is used.
template <int32_t kSlots, int32_t kChunks, class P>
__device__ __forceinline__ void add_slots(const Context<P>& x, const Bf16* slots, int32_t k0,
                                          int32_t chunk, const SlotScale& mine,
                                          Eight (&acc)[kChunks]) {
  const Dims& d{x.plan.dims};
  uint4 row[kSlots][kChunks];
#pragma unroll
  for (int32_t k = 0; k < kSlots; ++k) {
    const bool routed{
        __shfl_sync(kFullWarp, static_cast<int32_t>(mine.routed), (k0 + k) % kLanes) != 0};
#pragma unroll
    for (int32_t c = 0; c < kChunks; ++c) {
      const int32_t i{chunk + c * kLanes};
      row[k][c] = routed && k0 + k < d.top_k && i < d.hidden / 8
                      ? ptx::load_16(slots + int64_t{k0 + k} * d.hidden + i * 8)
                      : make_uint4(0, 0, 0, 0);
    }
  }
#pragma unroll
  for (int32_t k = 0; k < kSlots; ++k) {
    const float scale{__shfl_sync(kFullWarp, mine.scale, (k0 + k) % kLanes)};
#pragma unroll
    for (int32_t c = 0; c < kChunks; ++c) {
      if (k0 + k < d.top_k) add_scaled(&acc[c], scale, row[k][c]);
    }
  }
}

/// The shared expert's part of 8 columns of a token.
template <class P>
__device__ __forceinline__ void add_shared(const Context<P>& x, int32_t token, int32_t chunk,
                                           Eight* acc) {
  const Launch& l{x.launch};
  const auto& p{x.plan};
  const Dims& d{p.dims};
  const Bf16* shared{l.region<Bf16>(Region::kSharedOut) + int64_t{token} * d.hidden};
  const float score{d.score ? l.saved_region<float>(l.saved_layout.score)[token] : 0.0F};
  add_scaled(acc, d.score && !p.backward ? sigmoid(score) : 1.0F, ptx::load_16(shared + chunk * 8));
  if (d.score && p.backward) {
    add_scaled(acc, l.region<float>(Region::kDscore)[token],
               *reinterpret_cast<const uint4*>(l.weights.shared_score + chunk * 8));
  }
}

/// One token: slots in order, then the shared expert, one rounding.
template <class P>
__device__ inline void sum_token(const Context<P>& x, int32_t token) {
  const Launch& l{x.launch};
  const Dims& d{x.plan.dims};
  const Bf16* slots{l.heaps[d.rank].slots + int64_t{token} * d.top_k * d.hidden};
  constexpr int32_t kSlots{4};
  constexpr int32_t kChunks{2};
  const SlotScale first{load_scale(x, token, lane_id())};
  for (int32_t base{0}; base < d.hidden / 8; base += kLanes * kChunks) {
    const int32_t chunk{base + lane_id()};
    Eight acc[kChunks]{};
    SlotScale mine{first};
    for (int32_t k0{0}; k0 < d.top_k; k0 += kSlots) {
      if (k0 % kLanes == 0 && k0 > 0) mine = load_scale(x, token, k0 + lane_id());
      add_slots<kSlots, kChunks>(x, slots, k0, chunk, mine, acc);
    }
#pragma unroll
    for (int32_t c = 0; c < kChunks; ++c) {
      const int32_t i{chunk + c * kLanes};
      if (i >= d.hidden / 8) continue;
      if (d.shared > 0) add_shared(x, token, i, &acc[c]);
      if (l.y == nullptr) continue;
      const float* v{acc[c].v};
      *reinterpret_cast<uint4*>(l.y + token * l.y_row + i * 8) =
          make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                     pack_bf16(v[6], v[7]));
    }
  }
}

template <class P>
__device__ inline void combine(const Context<P>& x, int32_t block, int32_t thread) {
  const Launch& l{x.launch};
  const auto& p{x.plan};
  const Dims& d{p.dims};
  const int32_t end{min_of(d.tokens, (block + 1) * p.tile.sum_tokens)};
  for (int32_t token{block * p.tile.sum_tokens + thread / kLanes}; token < end; token += 4) {
    sum_token(x, token);
    if (!p.backward || l.dtopk_weights.data == nullptr) continue;
    for (int32_t k{lane_id()}; k < d.top_k; k += kLanes) {
      const int64_t slot{int64_t{token} * d.top_k + k};
      l.dtopk_weights.at(token, k) =
          p.tables.ids[slot] >= 0 ? __ldcg(l.heaps[d.rank].slot_scalars + slot) : 0.0F;
    }
  }
}

}  // namespace monomoe::cuda
