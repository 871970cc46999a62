// Tasks of backward: which products, and what becomes of them. Runs in the consumer role of
// compute.cuh, with its turns, stages and registers.
#pragma once

#include <cstdint>

#include "arch/sm90/compute.cuh"
#include "arch/sm90/dgrad.cuh"
#include "arch/sm90/shared_backward.cuh"
#include "arch/sm90/wgrad.cuh"

namespace monomoe::sm90 {

/// Products of a tile, then half(sums, 0), and half(sums, 1) if it has more than 64 rows.
/// `start(sums, half)`: what the sums begin with, if they go on; else zero.
///
/// Each kind has main loops and sums of its own: where sums of several loops meet, or those of a
/// half that was not multiplied, ptxas finds a definition between two products and serialises all
/// of the kernel (C7515).
template <Feed kFeed, class Start, class Half>
__device__ __forceinline__ void multiply(WorkerSmem& s, const Consumer& c, const Work& w,
                                         const StageCursor& begin, const Turn& turn, bool goes_on,
                                         const Start& start, const Half& half) {
  const int32_t behind{kFeed == Feed::kDgrad ? w.k_behind : 0};
  float d0[64];
  float d1[64];
  if (w.rows > kHalfTile) {
    if (goes_on) {
      start(d0, 0);
      start(d1, 1);
    }
    main_loop<kFeed, true>(s, c, begin, turn, w.k_blocks - behind, behind, goes_on, d0, d1);
    half(d0, 0);
    half(d1, 1);
  } else {
    if (goes_on) start(d0, 0);
    main_loop<kFeed, false>(s, c, begin, turn, w.k_blocks - behind, behind, goes_on, d0, d1);
    half(d0, 0);
  }
}
template <Feed kFeed, class Half>
__device__ __forceinline__ void multiply(WorkerSmem& s, const Consumer& c, const Work& w,
                                         const StageCursor& begin, const Turn& turn,
                                         const Half& half) {
  multiply<kFeed>(
      s, c, w, begin, turn, false, [](float(&)[64], int32_t) {}, half);
}

/// A weight gradient.
template <class P>
__device__ __forceinline__ void run_wgrad(const Context<P>& x, WorkerSmem& s, const Consumer& c,
                                          const Work& w, const StageCursor& begin,
                                          const Turn& turn) {
  const GradTile out{grad_tile(x, w)};
  const auto store = [&](const float(&d)[64], int32_t half) { wgrad_half(x, c, w, out, d, half); };
  if (w.k_blocks > 0) {
    // From zero, or from what the expert's chunks before have spilled.
    const auto start = [&](float(&d)[64], int32_t half) {
      load_fragment(spilled(x, c, w, half), d);
      ptx::hold(d);
    };
    multiply<Feed::kWgrad>(s, c, w, begin, turn, !w.task.first, start, store);
    return;
  }
  pass_turn(c, turn);  // no rows: the gradient is zero
  const float zero[64]{};
#pragma unroll 1
  for (int32_t half = 0; half * kHalfTile < w.rows; ++half) store(zero, half);
}

/// The warpgroup is done with a stage behind its products.
__device__ __forceinline__ void leave_stage(WorkerSmem& s, const Consumer& c, StageCursor* at) {
  c.sync();
  if (c.thread == 0) {
    ptx::barrier_wait(&s.full[at->stage], at->phase);  // nothing came, nobody waited
    release_stage(s, at->stage);
  }
  at->next();
}

/// A task with products.
template <class P>
__device__ __forceinline__ void run_products(const Context<P>& x, WorkerSmem& s, const Consumer& c,
                                             const Work& w, const StageCursor& begin,
                                             const Turn& turn) {
  switch (w.task.kind) {
    case Kind::kGateUp:
    case Kind::kSharedGateUp: {
      uint4* const to{preact_rows(x, w) + c.thread};
      const int32_t inter{w.task.kind == Kind::kGateUp ? x.plan.dims.inter : x.plan.dims.shared};
      multiply<Feed::kForward>(s, c, w, begin, turn, [&](const float(&d)[64], int32_t half) {
        recompute_half<P>(w, to, inter, d, half);
      });
      break;
    }
    case Kind::kDgradDown:
    case Kind::kSharedDgradDown: {
      const DgradOut out{dgrad_out(x, w)};
      StageCursor at{begin.after(w.k_blocks - w.k_behind)};
      multiply<Feed::kDgrad>(s, c, w, begin, turn, [&](const float(&d)[64], int32_t half) {
        ptx::barrier_wait(&s.full[at.stage], at.phase);
        dgrad_down_half(x, c, w, out, d, half, s.stages[at.stage]);
        leave_stage(s, c, &at);
      });
      if (w.rows <= kHalfTile) leave_stage(s, c, &at);
      break;
    }
    case Kind::kDgradGateUp:
    case Kind::kSharedDgradGateUp:
      multiply<Feed::kDgrad>(s, c, w, begin, turn, [&](const float(&d)[64], int32_t half) {
        down_half(x, s, c, w, d, half);
      });
      break;
    default:
      run_wgrad(x, s, c, w, begin, turn);
      break;
  }
}

/// One task of this warpgroup.
template <class P>
__device__ inline void run_backward_task(const Context<P>& x, WorkerSmem& s, const Consumer& c,
                                         const Work& w, const StageCursor& begin,
                                         const Turn& turn) {
  switch (w.task.kind) {
    case Kind::kCombine:
      combine(x, s, c, w, begin, turn);
      break;
    case Kind::kSharedDscore:
      pass_turn(c, turn);
      shared_dscore(x, c, w);
      break;
    case Kind::kSharedWgradScore:
      pass_turn(c, turn);
      shared_wgrad_score(x, s, c, w);
      break;
    default:
      run_products(x, s, c, w, begin, turn);
      break;
  }
}

}  // namespace monomoe::sm90
