// The shared expert's scalars in backward: dscore, and the gradient of w_score. No products.
#pragma once

#include <cstdint>

#include "arch/sm90/dgrad.cuh"

namespace monomoe::sm90 {

/// dscore[t] = sigma (1 - sigma) <dA', a>: a thread a token.
template <class P>
__device__ inline void shared_dscore(const Context<P>& x, const Consumer& c, const Work& w) {
  const cuda::Launch& l{x.launch};
  if (c.thread >= w.rows) return;
  const int64_t token{w.out_row + c.thread};
  const float sum{sum_partials(partials_of(x, w, c.thread), x.plan.shared_inter_tiles())};
  const float sigma{sigma_of(x, token)};
  l.region<float>(Region::kDscore)[token] = sigma * (1.0F - sigma) * sum;
}

/// Sums of a warp: tokens warp, warp + 4, ... ascending; a lane owns four columns.
template <class P>
__device__ inline float4 sum_score_tokens(const Context<P>& x, const Consumer& c, int32_t col) {
  const cuda::Launch& l{x.launch};
  const float* const dscore{l.region<float>(Region::kDscore)};
  constexpr int32_t kInFlight{8};
  float4 sum{};
  for (int32_t first{c.warp}; first < x.plan.dims.tokens; first += 4 * kInFlight) {
    uint2 row[kInFlight];
    float scale[kInFlight];
#pragma unroll
    for (int32_t i = 0; i < kInFlight; ++i) {
      const int32_t token{first + 4 * i};
      const bool is_there{token < x.plan.dims.tokens};
      row[i] = is_there ? *reinterpret_cast<const uint2*>(l.x.at(token) + col) : make_uint2(0, 0);
      scale[i] = is_there ? __ldcg(dscore + token) : 0.0F;
    }
#pragma unroll
    for (int32_t i = 0; i < kInFlight; ++i) {
      sum.x = fmaf(scale[i], cuda::low_half(row[i].x), sum.x);
      sum.y = fmaf(scale[i], cuda::high_half(row[i].x), sum.y);
      sum.z = fmaf(scale[i], cuda::low_half(row[i].y), sum.z);
      sum.w = fmaf(scale[i], cuda::high_half(row[i].y), sum.w);
    }
  }
  return sum;
}

__device__ inline void store_grad_value(const GradOut& out, GradStore store, int64_t at, float v) {
  switch (store) {
    case GradStore::kBf16:
      static_cast<Bf16*>(out.data)[at] = Bf16{static_cast<uint16_t>(pack_bf16(v, 0.0F))};
      break;
    case GradStore::kF32:
      static_cast<float*>(out.data)[at] = v;
      break;
    case GradStore::kAddF32:
      static_cast<float*>(out.data)[at] += v;
      break;
  }
}

/// One column tile of w_score's gradient: four interleaved sums over tokens, added in warp order.
template <class P>
__device__ inline void shared_wgrad_score(const Context<P>& x, WorkerSmem& s, const Consumer& c,
                                          const Work& w) {
  const cuda::Launch& l{x.launch};
  const auto& p{x.plan};
  const int32_t first{w.task.col * p.tile.cols};
  float4 own{};
  if (first + c.lane * 4 < p.dims.hidden) own = sum_score_tokens(x, c, first + c.lane * 4);
  reinterpret_cast<float4*>(s.staging[c.group * 4 + c.warp])[c.lane] = own;
  c.sync();
  float sum{0.0F};
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    sum += reinterpret_cast<const float*>(s.staging[c.group * 4 + i])[c.thread];
  }
  c.sync();  // what a slower warp still reads, the next task must not overwrite
  c.sync();  // the next task's epilogue writes to the staging
  if (p.chain_shared) {
    float* const chain{
        l.chain + int64_t{shared_wgrad_index(p, w.task)} * p.tile.rows * p.tile.cols + c.thread};
    if (p.dims.rank > 0) sum = __ldcg(chain) + sum;
    if (p.dims.rank + 1 < p.dims.ranks) {
      __stcg(chain, sum);
      return;
    }
  }
  if (first + c.thread < p.dims.hidden) {
    store_grad_value(l.grads.shared_score, l.grads.store, first + c.thread, sum);
  }
}

}  // namespace monomoe::sm90
