// Combine tasks: the sum over slots, by the 128 threads of a warpgroup.
//
// Reads    slots, shared_out (written during this launch: no read-only loads), ids, weights
// Writes   y or dx, dtopk_weights
// Timeline a warp takes every fourth token of the block; a lane owns 8 columns at a time and has
//          up to 8 slots x 16 bytes in flight
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

/// Columns of one token.
template <class P>
__device__ inline void sum_token(const Context<P>& x, int32_t token) {
  const Launch& l{x.launch};
  const auto& p{x.plan};
  const Dims& d{p.dims};
  const Bf16* slots{l.heaps[d.rank].slots + int64_t{token} * d.top_k * d.hidden};
  const int32_t* ids{p.tables.ids + int64_t{token} * d.top_k};
  constexpr int32_t kInFlight{8};
  for (int32_t i{lane_id()}; i < d.hidden / 8; i += kLanes) {
    Eight acc{};
    for (int32_t k0{0}; k0 < d.top_k; k0 += kInFlight) {
      uint4 row[kInFlight];
      float scale[kInFlight];
#pragma unroll
      for (int32_t k = 0; k < kInFlight; ++k) {
        const bool routed{k0 + k < d.top_k && ids[k0 + k] >= 0};
        row[k] = routed ? ptx::load_16(slots + int64_t{k0 + k} * d.hidden + i * 8)
                        : make_uint4(0, 0, 0, 0);
        scale[k] = !routed ? 0.0F : (p.backward ? 1.0F : l.topk_weights.at(token, k0 + k));
      }
#pragma unroll
      for (int32_t k = 0; k < kInFlight; ++k) {
        if (k0 + k < d.top_k) add_scaled(&acc, scale[k], row[k]);
      }
    }
    if (d.shared > 0) {
      const Bf16* shared{l.region<Bf16>(Region::kSharedOut) + int64_t{token} * d.hidden};
      const float score{d.score ? l.saved_region<float>(l.saved_layout.score)[token] : 0.0F};
      add_scaled(&acc, d.score && !p.backward ? sigmoid(score) : 1.0F,
                 ptx::load_16(shared + i * 8));
      if (d.score && p.backward) {
        add_scaled(&acc, l.region<float>(Region::kDscore)[token],
                   *reinterpret_cast<const uint4*>(l.weights.shared_score + i * 8));
      }
    }
    if (l.y == nullptr) continue;
    *reinterpret_cast<uint4*>(l.y + token * l.y_row + i * 8) =
        make_uint4(pack_bf16(acc.v[0], acc.v[1]), pack_bf16(acc.v[2], acc.v[3]),
                   pack_bf16(acc.v[4], acc.v[5]), pack_bf16(acc.v[6], acc.v[7]));
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
