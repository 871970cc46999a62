// The one bounded wait and the one release-add.
#pragma once

#include <cstdint>

#include "arch/cuda/launch.h"
#include "arch/cuda/ptx/memory.cuh"

namespace monomoe::cuda {

/// A launch as one thread sees it: parameters, the plan with its epoch, this launch's counters.
template <class P>
struct Context {
  const Launch& launch;
  const P& plan;  // in shared memory
  int32_t* counters;
  int32_t worker;

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
        return counters + launch.counter_layout.at[static_cast<int32_t>(c.id)] + c.index;
    }
  }
};

template <class P>
__device__ inline int32_t poll(const Context<P>& x, const CounterRef& c) {
  const int32_t* p{x.word(c)};
  return x.many_ranks() && is_heap(c.id) ? ptx::load_relaxed_sys(p) : ptx::load_relaxed_gpu(p);
}

/// Ends successful polling.
template <class P>
__device__ inline void acquire(const Context<P>& x) {
  if (x.many_ranks()) {
    ptx::fence_acquire_sys();
  } else {
    ptx::fence_acquire_gpu();
  }
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

/// Leaves a record (the first one wins), then tells every peer to leave.
template <class P>
__device__ inline void report_fault(const Context<P>& x, const Waiter& w, const CounterRef& c,
                                    int32_t seen, int32_t wanted) {
  FaultRecord* f{x.launch.fault};
  if (atomicCAS_system(&f->set, 0, 1) == 0) {
    f->rank = x.plan.dims.rank;
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
    f->epoch = x.plan.epoch;
    f->num_words = min_of(x.plan.dims.ranks, 64);
    const HeapView& own{x.launch.heaps[x.plan.dims.rank].view};
    for (int32_t i{0}; i < f->num_words; ++i) {
      f->epochs[i] = static_cast<uint32_t>(
          ptx::load_relaxed_sys(reinterpret_cast<const int32_t*>(&own.words[i].epoch)));
    }
    ptx::store_release_sys(&f->set, 2);
  }
  for (int32_t r{0}; r < x.plan.dims.ranks; ++r) {
    ptx::store_relaxed_sys(x.launch.heaps[r].view.abort, 1);
  }
}

/// Polls until `c` has reached `wanted`; `acquire` must follow. False: the launch is aborted, or
/// the budget is used up (then the fault is recorded); leave without touching a peer.
///
/// Out of line, with everything by value: what has an address lives in local memory, and every
/// acquire sends local memory to L2 (docs/notes).
template <class P>
__device__ __noinline__ bool keep_polling(const Context<P> x, const Waiter w, const CounterRef c,
                                          int32_t wanted) {
  const uint64_t begin{ptx::global_nanoseconds()};
  for (uint32_t spins{1};; ++spins) {
    __nanosleep(32);
    const int32_t seen{poll(x, c)};
    if (satisfied(c, seen, wanted)) return true;
    if (spins % 64 != 0) continue;
    if (aborted(x)) return false;
    if (ptx::global_nanoseconds() - begin > x.launch.timeout_ns) {
      report_fault(x, w, c, seen, wanted);
      return false;
    }
  }
}

/// Visits the waits of `t`; true if all hold. `blocks`: waits for each, else only looks.
template <class P>
__device__ inline bool check_waits(const Context<P>& x, Line line, const Task& t, bool blocks) {
  const Waiter w{line, t.kind, t.row, t.col};
  bool ok{true};
  for_each_wait(x.plan, t, [&](const CounterRef& c, int32_t wanted) {
    if (ok && !satisfied(c, poll(x, c), wanted)) {
      ok = blocks && keep_polling(x, w, c, wanted);
    }
  });
  if (ok) acquire(x);
  return ok;
}

}  // namespace monomoe::cuda
