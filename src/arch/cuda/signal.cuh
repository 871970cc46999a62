// The one bounded wait and the one release-add.
#pragma once

#include <cstdint>

#include "arch/cuda/launch.h"
#include "arch/cuda/ptx/barrier.cuh"
#include "arch/cuda/ptx/memory.cuh"

namespace monomoe::cuda {

/// A launch as one thread sees it: parameters, the plan with its epoch, this launch's counters. All
/// but the parameters lie in shared memory, where a role needs no registers for them.
template <class P>
struct Context {
  const Launch& launch;
  const P& plan;
  int32_t* const& counters;
  const CounterLayout& counter_layout;
  const int32_t& worker;  // order of this block among the launch's blocks

  __device__ bool many_ranks() const { return plan.dims.ranks > 1; }

  __device__ int32_t* launch_word(LaunchCounter c) const {
    return counters + static_cast<int32_t>(c);
  }

  __device__ int32_t* word(const CounterRef& c) const {
    if (plan.backward && c.id == Counter::kSharedChain) return launch.chain_words + c.index;
    switch (c.id) {
      case Counter::kArrival:
        return launch.heaps[c.rank].view.arrivals + c.index;
      case Counter::kStageFlag:
        return launch.heaps[c.rank].view.stage_flags + c.index;
      default:
        return counters + counter_layout.at[static_cast<int32_t>(c.id)] + c.index;
    }
  }
};

template <class P>
__device__ inline int32_t poll(const Context<P>& x, const CounterRef& c) {
  const int32_t* p{x.word(c)};
  return x.many_ranks() && is_heap(c.id) ? ptx::load_relaxed_sys(p) : ptx::load_relaxed_gpu(p);
}

/// The same, and what was released with the value is visible from here on.
template <class P>
__device__ inline int32_t poll_acquire(const Context<P>& x, const CounterRef& c) {
  const int32_t* p{x.word(c)};
  return x.many_ranks() && is_heap(c.id) ? ptx::load_acquire_sys(p) : ptx::load_acquire_gpu(p);
}

/// The one release-add: everything this thread wrote or has seen becomes visible with it.
///
/// The words of kSharedChain belong to all ranks of a local group and have no second half: the last
/// rank's step takes them back to zero, and the group's next launch begins when all have ended.
template <class P>
__device__ inline void add_release(const Context<P>& x, const CounterRef& c, int32_t step) {
  if (x.plan.backward && c.id == Counter::kSharedChain &&
      x.plan.dims.rank + 1 == x.plan.dims.ranks) {
    step = -x.plan.dims.rank;
  }
  if (x.many_ranks() && is_heap(c.id)) {
    ptx::add_release_sys(x.word(c), step);
  } else {
    ptx::add_release_gpu(x.word(c), step);
  }
}

template <class P>
__device__ inline bool aborted(const Context<P>& x) {
  return ptx::load_relaxed_sys(x.launch.heaps[x.plan.dims.rank].view.abort) != 0;
}

/// Who waits: a task in four small numbers, so that it can travel in registers.
struct Waiter {
  Line line;
  Kind kind;
  int32_t row, col;
};

/// What every rank has told this one.
template <class P>
__device__ inline const LaunchWord* words(const Context<P>& x) {
  return x.launch.heaps[x.plan.dims.rank].view.words;
}

/// 0: `peer` is in the same call. Below 2^32: in another one of this epoch. Else it is not here
/// yet, or done already.
template <class P>
__device__ inline uint64_t call_difference(const Context<P>& x, int32_t peer) {
  return ptx::load_relaxed_sys(&words(x)[peer].stamp) ^
         ptx::load_relaxed_sys(&words(x)[x.plan.dims.rank].stamp);
}

/// May this wait be over? Rows of a rank are touched only if it is in the same call: its flag and
/// its launch word, which it wrote before any flag, must both be seen.
template <class P>
__device__ inline bool in_same_call(const Context<P>& x, const CounterRef& c) {
  return !x.many_ranks() || c.id != Counter::kStageFlag || call_difference(x, c.rank) == 0;
}

/// Leaves a record (the first one wins), then makes every peer leave. `odd`: the peer that is in
/// another call; -1: the wait has expired. The last block to leave completes the record
/// (spoil.cuh): each register of keep_polling costs its callers one.
template <class P>
__device__ inline void report_fault(const Context<P>& x, const Waiter& w, const CounterRef& c,
                                    int32_t seen, int32_t wanted, int32_t odd) {
  FaultRecord* f{x.launch.fault};
  if (atomicCAS_system(&f->set, 0, 1) == 0) {
    f->worker = x.worker;
    f->line = static_cast<int32_t>(w.line);
    f->kind = static_cast<int32_t>(w.kind);
    f->row = w.row;
    f->col = w.col;
    f->counter = static_cast<int32_t>(c.id);
    f->counter_rank = c.rank;
    f->counter_index = c.index;
    f->seen = seen;
    f->wanted = wanted;
    f->peer = odd;
  }
#pragma unroll 1
  for (int32_t r{0}; r < x.plan.dims.ranks; ++r) {
    ptx::store_relaxed_sys(x.launch.heaps[r].view.abort, 1);
  }
}

/// Polls until `c` has reached `wanted`, then acquires. False: the launch is aborted, a peer is in
/// another call, or the budget is used up (then the fault is recorded); leave without touching a
/// peer. Polls relaxed: an acquire empties the L1 cache.
///
/// Out of line, with everything by value: what has an address lives in local memory, and every
/// acquire sends local memory to L2 (docs/notes). The only call of the roles: a second one, or one
/// from here, costs the whole kernel its registers.
template <class P>
__device__ __noinline__ bool keep_polling(const Context<P> x, const Waiter w, const CounterRef c,
                                          int32_t wanted) {
  const uint64_t begin{ptx::global_nanoseconds()};
  for (uint32_t spins{1};; ++spins) {
    __nanosleep(32);
    const int32_t seen{poll(x, c)};
    if (satisfied(c, seen, wanted) && satisfied(c, poll_acquire(x, c), wanted) &&
        in_same_call(x, c)) {
      return true;
    }
    if (spins % 64 != 0) continue;
    if (aborted(x)) return false;
    const auto peer = static_cast<int32_t>(spins / 64) % x.plan.dims.ranks;  // one a look
    const uint64_t difference{call_difference(x, peer)};
    const bool is_odd{difference != 0 && difference >> 32U == 0};
    if (!is_odd && ptx::global_nanoseconds() - begin <= x.launch.timeout_ns) continue;
    report_fault(x, w, c, seen, wanted, is_odd ? peer : -1);
    return false;
  }
}

/// Tests make a rank late. Inline: a call here would cost roles their registers.
template <class L>
__device__ __forceinline__ void pause(const L& launch, PauseAt at) {
  const uint32_t us{launch.pause_us[static_cast<int32_t>(at)]};
  if (us == 0) return;
  for (const uint64_t begin{ptx::global_nanoseconds()};
       ptx::global_nanoseconds() - begin < uint64_t{us} * 1000;) {
    __nanosleep(1000);
  }
}

/// Has `c` reached `wanted`? `blocks`: waits until it has (false: aborted), else only looks. What
/// was released with it is visible then.
template <class P>
__device__ inline bool arrived(const Context<P>& x, const Waiter& w, const CounterRef& c,
                               int32_t wanted, bool blocks) {
  return (satisfied(c, poll_acquire(x, c), wanted) && in_same_call(x, c)) ||
         (blocks && keep_polling(x, w, c, wanted));
}

constexpr uint32_t kFullWarp{0xFFFFFFFFU};
constexpr int32_t kLanes{32};

__device__ inline int32_t lane_id() { return static_cast<int32_t>(threadIdx.x) % kLanes; }

/// One lane of a warp, always the same, does it; the others stand still until it is done. What bulk
/// copies take lies in uniform registers, which all lanes of a warp share: lanes that ran on could
/// change them.
template <class F>
__device__ __forceinline__ void by_one_lane(F&& f) {
  __syncwarp();
  if (ptx::elect_one()) f();
  __syncwarp();
}

/// `arrived` for a warp whose lanes look at a counter each, or at none (`waits` false).
template <class P>
__device__ inline bool all_arrived(const Context<P>& x, const Waiter& w, bool waits,
                                   const CounterRef& c, int32_t wanted, bool blocks) {
  const bool ok{!waits || arrived(x, w, c, wanted, blocks)};
  const bool all{__all_sync(kFullWarp, ok) != 0};
  __syncwarp();  // what one lane acquired, all may rely on
  return all;
}

/// The waits of up to 32 / `lanes` tasks of one line, side by side: those of `t` by `lanes` lanes,
/// one after the other. Lanes that `block` wait for them, and all get false if the launch is
/// aborted meanwhile; the others only look. True for lanes that found none open.
///
/// Arrivals of a combine task count only once its stage flag was seen, which comes first: until
/// then the counter may hold those of the launch before.
template <class P>
__device__ inline bool check_waits(const Context<P>& x, Line line, const Task& t, int32_t lanes,
                                   bool blocks) {
  const Waiter w{line, t.kind, t.row, t.col};
  const bool sums{t.kind == Kind::kCombine};
  bool flags{sums};  // look at flags now, or at everything else
  bool ok{true};
  int32_t at{lane_id() & (lanes - 1)};
  MONOMOE_ROLLED
  for (;;) {
    CounterRef mine{};
    int32_t wanted{0};
    bool waits{false};
    int32_t n{0};
    for_each_wait(x.plan, t, [&](const CounterRef& c, int32_t target) {
      if (sums && (c.id == Counter::kStageFlag) != flags) return;
      if (n++ != at) return;
      mine = c;
      wanted = target;
      waits = true;
    });
    ok = ok && (!waits || arrived(x, w, mine, wanted, blocks));
    if (__any_sync(kFullWarp, blocks && !ok) != 0) return false;
    at += lanes;
    if (__any_sync(kFullWarp, n > (at & ~(lanes - 1))) != 0) continue;
    __syncwarp();  // what one lane acquired, all may rely on
    if (!flags) return ok;
    flags = false;
    at = lane_id() & (lanes - 1);
  }
}

}  // namespace monomoe::cuda
