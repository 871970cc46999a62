// Epilogue of weight gradients: fp32 sums of a tile -> spilled, handed on to the next rank, or
// done.
//
// Spilled and chained tiles lie in fragment order, 16 floats4 a thread for each 64 rows: both sides
// access 16 bytes each. A gradient is done once: rounded to bf16, stored as fp32, or added to fp32.
#pragma once

#include <cstdint>

#include "arch/sm90/epilogue.cuh"

namespace monomoe::sm90 {

/// The thread's part of fp32 tile `idx` of a region, of the given 64 rows.
__device__ __forceinline__ float4* fragment_of(float* tiles, int32_t idx, int32_t half,
                                               int32_t thread) {
  constexpr int32_t kVectors{64 / 4};  // a thread and half
  return reinterpret_cast<float4*>(tiles + int64_t{idx} * FixedTile::rows * FixedTile::cols) +
         half * kVectors * kGroupThreads + thread;
}

/// Sums of 64 rows, four at a time; the ranks before have added up `before` (or null). Not added in
/// place: registers of wgmma that other code writes would make ptxas serialise all products.
struct Sums {
  const float (&d)[64];
  const float4* before;

  __device__ __forceinline__ float4 at(int32_t i) const {
    const float4 own{make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3])};
    if (before == nullptr) return own;
    const float4 v{__ldcg(before + i * kGroupThreads)};
    return make_float4(v.x + own.x, v.y + own.y, v.z + own.z, v.w + own.w);
  }
};

__device__ __forceinline__ void store_fragment(float4* to, const Sums& sums) {
#pragma unroll
  for (int32_t i = 0; i < 16; ++i) __stcg(to + i * kGroupThreads, sums.at(i));
}

__device__ __forceinline__ void load_fragment(const float4* from, float (&d)[64]) {
#pragma unroll
  for (int32_t i = 0; i < 16; ++i) {
    const float4 v{__ldcg(from + i * kGroupThreads)};
    d[4 * i] = v.x;
    d[4 * i + 1] = v.y;
    d[4 * i + 2] = v.z;
    d[4 * i + 3] = v.w;
  }
}

/// The spilled sum of the task's tile: what the expert's chunks so far have added up to.
template <class P>
__device__ __forceinline__ float4* spilled(const Context<P>& x, const Consumer& c, const Work& w,
                                           int32_t half) {
  return fragment_of(x.launch.template region<float>(Region::kSpill), wgrad_index(x.plan, w.task),
                     half, c.thread);
}

/// A tile of a gradient in the caller's tensor.
struct GradTile {
  void* data;    // first element of the tile
  int64_t ld;    // elements
  int32_t rows;  // that exist
  int32_t cols;
  GradStore store;
};

template <class P>
__device__ inline GradTile grad_tile(const Context<P>& x, const Work& w) {
  const WeightGrads& g{x.launch.grads};
  const auto& p{x.plan};
  const Kind kind{w.task.kind};
  const GradOut* out{nullptr};
  if (kind == Kind::kWgradGateUp) out = w.a_z == 0 ? &g.gate : &g.up;
  if (kind == Kind::kWgradDown) out = &g.down;
  if (kind == Kind::kSharedWgradGateUp) out = w.a_z == 0 ? &g.shared_gate : &g.shared_up;
  if (kind == Kind::kSharedWgradDown) out = &g.shared_down;
  const bool gate_up{kind == Kind::kWgradGateUp || kind == Kind::kSharedWgradGateUp};
  const int32_t inter{detail::is_shared(kind) ? p.dims.shared : p.dims.inter};
  const int32_t width{gate_up ? p.dims.hidden : inter};
  const int64_t at{w.task.expert * out->matrix + w.a_row * out->row + w.b_row0};
  const int64_t item{g.store == GradStore::kBf16 ? 2 : 4};
  return {static_cast<std::byte*>(out->data) + at * item, out->row, w.rows, width - w.b_row0,
          g.store};
}

/// 64 rows of a finished gradient, rounded.
__device__ __forceinline__ void store_bf16(const Consumer& c, const GradTile& g, const Sums& sums,
                                           int32_t half) {
  const int32_t row0{half * 64 + c.warp * 16};
  Bf16* const to{static_cast<Bf16*>(g.data)};
#pragma unroll
  for (int32_t block = 0; block < 2; ++block) {
    uint32_t v[16];
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      const float4 q{sums.at(block * 8 + i)};
      v[2 * i] = pack_bf16(q.x, q.y);
      v[2 * i + 1] = pack_bf16(q.z, q.w);
    }
    store_rows(c, v, [&](int32_t r, int32_t, int32_t chunk, const uint4& q) {
      const int32_t row{row0 + r};
      const int32_t col{block * 64 + chunk * 8};
      if (row >= g.rows || col >= g.cols) return;
      ptx::store_16_once(to + row * g.ld + col, q);
    });
  }
}

/// In fp32: four lanes have 32 bytes of a row next to each other, whole sectors without staging.
__device__ __forceinline__ void store_f32(const Consumer& c, const GradTile& g, const Sums& sums,
                                          int32_t half) {
  const bool adds{g.store == GradStore::kAddF32};
  const int32_t row0{half * 64 + c.warp * 16 + c.lane / 4};
  float* const to{static_cast<float*>(g.data) + row0 * g.ld + c.lane % 4 * 2};
  const bool there[2]{row0 < g.rows, row0 + 8 < g.rows};
  constexpr int32_t kAtOnce{4};
#pragma unroll
  for (int32_t first = 0; first < 16; first += kAtOnce) {
    float2 v[kAtOnce][2]{};
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int32_t h = 0; h < 2; ++h) {
        if (!adds || !there[h] || (first + i) * 8 >= g.cols) continue;
        v[i][h] = __ldcs(reinterpret_cast<const float2*>(to + h * 8 * g.ld + (first + i) * 8));
      }
    }
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      const float4 q{sums.at(first + i)};
#pragma unroll
      for (int32_t h = 0; h < 2; ++h) {
        if (!there[h] || (first + i) * 8 >= g.cols) continue;
        const float2 own{h == 0 ? make_float2(q.x, q.y) : make_float2(q.z, q.w)};
        __stcs(reinterpret_cast<float2*>(to + h * 8 * g.ld + (first + i) * 8),
               adds ? make_float2(v[i][h].x + own.x, v[i][h].y + own.y) : own);
      }
    }
  }
}

/// 64 rows of a task's sums.
template <class P>
__device__ __forceinline__ void wgrad_half(const Context<P>& x, const Consumer& c, const Work& w,
                                           const GradTile& g, const float (&d)[64], int32_t half) {
  const auto& p{x.plan};
  if (!w.task.last) return store_fragment(spilled(x, c, w, half), Sums{d, nullptr});
  Sums sums{d, nullptr};
  if (detail::is_shared(w.task.kind) && p.chain_shared) {
    float4* const chain{fragment_of(x.launch.chain, shared_wgrad_index(p, w.task), half, c.thread)};
    if (p.dims.rank > 0) sums.before = chain;
    if (p.dims.rank + 1 < p.dims.ranks) return store_fragment(chain, sums);
  }
  if (g.store == GradStore::kBf16) {
    store_bf16(c, g, sums, half);
  } else {
    store_f32(c, g, sums, half);
  }
}

}  // namespace monomoe::sm90
