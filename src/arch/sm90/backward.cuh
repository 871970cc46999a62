// Tasks of backward: which products, and what becomes of them. Runs in the consumer role of
// compute.cuh, with its turns, stages and registers.
#pragma once

#include <cstdint>

#include "arch/sm90/compute.cuh"
#include "arch/sm90/dgrad.cuh"
#include "arch/sm90/shared_backward.cuh"
#include "arch/sm90/wgrad.cuh"

namespace monomoe::sm90 {

template <Feed kFeed>
__device__ __forceinline__ void multiply(WorkerSmem& s, const Consumer& c, const Work& w,
                                         const StageCursor& begin, bool goes_on, float (&d0)[64],
                                         float (&d1)[64]) {
  if (w.rows > kHalfTile) {
    main_loop<kFeed, true>(s, c, begin, w.k_blocks, goes_on, d0, d1);
  } else {
    main_loop<kFeed, false>(s, c, begin, w.k_blocks, goes_on, d0, d1);
  }
}

/// The sums of a wgrad task: from zero, or from what the chunks before have spilled.
template <class P>
__device__ __forceinline__ void multiply_wgrad(const Context<P>& x, WorkerSmem& s,
                                               const Consumer& c, const Work& w,
                                               const StageCursor& begin, float (&d0)[64],
                                               float (&d1)[64]) {
  if (w.k_blocks == 0) {  // no rows: the gradient is zero
    pass_turn(s, c);
#pragma unroll
    for (int32_t i = 0; i < 64; ++i) d0[i] = d1[i] = 0.0F;
    return;
  }
  const bool goes_on{!w.task.first};
  if (goes_on) {
    load_fragment<false>(spilled(x, c, w, 0), d0);
    if (w.rows > kHalfTile) load_fragment<false>(spilled(x, c, w, 1), d1);
  }
  multiply<Feed::kWgrad>(s, c, w, begin, goes_on, d0, d1);
}

/// Calls half(sums, 0), and half(sums, 1) if the tile has more than 64 rows.
template <class Half>
__device__ __forceinline__ void for_halves(const Work& w, float (&d0)[64], float (&d1)[64],
                                           const Half& half) {
  half(d0, 0);
  if (w.rows > kHalfTile) half(d1, 1);
}

/// A task with products.
template <class P>
__device__ __forceinline__ void run_products(const Context<P>& x, WorkerSmem& s, const Consumer& c,
                                             const Work& w, const StageCursor& begin,
                                             cuda::RoleClock* clock) {
  float d0[64];
  float d1[64];
  if (w.feed == Feed::kForward) {
    multiply<Feed::kForward>(s, c, w, begin, false, d0, d1);
  } else if (w.feed == Feed::kDgrad) {
    multiply<Feed::kDgrad>(s, c, w, begin, false, d0, d1);
  } else {
    multiply_wgrad(x, s, c, w, begin, d0, d1);
  }
  if (c.thread == 0) clock->lap(cuda::RoleTime::kConsumerLoop);
  switch (w.task.kind) {
    case Kind::kGateUp:
    case Kind::kSharedGateUp: {
      uint4* const to{preact_rows(x, c, w)};
      const int32_t inter{w.task.kind == Kind::kGateUp ? x.plan.dims.inter : x.plan.dims.shared};
      for_halves(w, d0, d1, [&](const float(&d)[64], int32_t half) {
        recompute_half<P>(w, to, inter, d, half);
      });
      break;
    }
    case Kind::kDgradDown:
    case Kind::kSharedDgradDown: {
      const DgradOut out{dgrad_out(x, c, w)};
      for_halves(w, d0, d1, [&](const float(&d)[64], int32_t half) {
        dgrad_down_half(x, c, w, out, d, half);
      });
      break;
    }
    case Kind::kDgradGateUp:
    case Kind::kSharedDgradGateUp:
      for_halves(w, d0, d1,
                 [&](const float(&d)[64], int32_t half) { down_half(x, s, c, w, d, half); });
      break;
    default: {
      const GradTile out{grad_tile(x, w)};
      for_halves(w, d0, d1,
                 [&](float(&d)[64], int32_t half) { wgrad_half(x, c, w, out, d, half); });
      break;
    }
  }
}

/// One task of this warpgroup.
template <class P>
__device__ inline void run_backward_task(const Context<P>& x, WorkerSmem& s, const Consumer& c,
                                         const Work& w, const StageCursor& begin,
                                         cuda::RoleClock* clock) {
  switch (w.task.kind) {
    case Kind::kCombine:
      combine(x, s, c, w, begin);
      break;
    case Kind::kSharedDscore:
      pass_turn(s, c);
      shared_dscore(x, c, w);
      break;
    case Kind::kSharedWgradScore:
      pass_turn(s, c);
      shared_wgrad_score(x, s, c, w);
      break;
    default:
      run_products(x, s, c, w, begin, clock);
      break;
  }
}

}  // namespace monomoe::sm90
