// Scheduler role: one warp of a worker.
//
// Waits    for each task, the counters of graph.h (bounded), a lane each
// Reads    tickets, tables
// Writes   the queue in shared memory
// Timeline ticket -> decode -> lanes wait side by side -> hand on -> now and then a look for a
//          combine task that is ready -> segments ahead, until the loader is nearly done with the
//          task. The queue lets the next task's loads start during this one's epilogue
#pragma once

#include <cstdint>

#include "arch/cuda/role_clock.cuh"
#include "arch/cuda/signal.cuh"
#include "arch/sm90/smem_plan.h"
#include "plan/order.h"

namespace monomoe::sm90 {

using cuda::Context;

/// Entry `idx` of all that are handed on lies at idx mod kQueue.
struct QueuePosition {
  int32_t slot;
  uint32_t phase;
  __device__ explicit QueuePosition(int32_t idx)
      : slot{idx % kQueue}, phase{static_cast<uint32_t>(idx / kQueue) & 1U} {}
};

/// For the scheduler: a free entry, then handed on.
__device__ inline Work* begin_entry(WorkerSmem& s, int32_t idx) {
  const QueuePosition at{idx};
  ptx::barrier_wait(&s.queue_empty[at.slot], at.phase ^ 1U);
  return &s.queue[at.slot];
}
__device__ inline void hand_on(WorkerSmem& s, int32_t idx) {
  ptx::barrier_arrive(&s.queue_full[QueuePosition{idx}.slot]);
}

/// For its readers; each sees every entry, and releases it by one thread.
__device__ inline const Work& wait_entry(WorkerSmem& s, int32_t idx) {
  const QueuePosition at{idx};
  ptx::barrier_wait(&s.queue_full[at.slot], at.phase);
  return s.queue[at.slot];
}
__device__ inline void release_entry(WorkerSmem& s, int32_t idx) {
  ptx::barrier_arrive(&s.queue_empty[QueuePosition{idx}.slot]);
}

/// For the warps that execute an entry, and for the signaller. (A barrier a warpgroup would not do:
/// a fast one could complete two phases before the signaller looks.)
__device__ inline void tell_stored(WorkerSmem& s, int32_t idx) {
  ptx::barrier_arrive(&s.stored[QueuePosition{idx}.slot]);
}
__device__ inline void wait_stored(WorkerSmem& s, int32_t idx) {
  const QueuePosition at{idx};
  ptx::barrier_wait(&s.stored[at.slot], at.phase);
}

constexpr int32_t kLookEvery{4};  // tasks between two looks at the combine line

/// The first lane's part: tickets, decoding, the queue.
template <class P>
class Scheduler {
 public:
  __device__ Scheduler(const Context<P>& x, WorkerSmem& s)
      : x_{x}, s_{s}, num_sums_{x.plan.token_blocks()}, clock_{x.launch} {}

  __device__ void start() { s_.cursor.start(x_.plan); }

  /// The next task, whose waits are not looked at yet.
  __device__ void pick() {
    Pick& next{s_.pick};
    if (step_ == Step::kTask && !pick_main(&next.task)) step_ = Step::kLastSums;
    if (step_ != Step::kTask) {
      int32_t* const word{x_.launch_word(LaunchCounter::kCombineTicket)};
      next.task = Task{};
      next.task.kind = Kind::kCombine;
      next.task.row = step_ == Step::kLook ? ptx::load_relaxed_gpu(word) : atomicAdd(word, 1);
    }
    next.step = step_;
    if (step_ == Step::kLastSums && next.task.row >= num_sums_) next.step = Step::kEnd;
    clock_.lap(cuda::RoleTime::kSchedulerDecode);
  }

  /// Its waits hold (`ready`), or, if it was only looked at, do not.
  __device__ void take(bool ready) {
    clock_.lap(cuda::RoleTime::kSchedulerWait);
    const Task& t{s_.pick.task};
    if (step_ == Step::kLook) {
      int32_t* const word{x_.launch_word(LaunchCounter::kCombineTicket)};
      step_ = Step::kTask;
      if (!ready || atomicCAS(word, t.row, t.row + 1) != t.row) return;
    } else if (step_ == Step::kTask && --until_look_ == 0) {
      step_ = Step::kLook;
      until_look_ = kLookEvery;
    }
    describe(x_.plan, t, begin_entry(s_, handed_on_));
    hand_on(s_, handed_on_++);
    clock_.lap(cuda::RoleTime::kSchedulerQueue);
  }

  __device__ void stop() {
    begin_entry(s_, handed_on_)->kind = Work::kStop;
    hand_on(s_, handed_on_);
  }

 private:
  /// Tickets are taken just in time: workers that hoard them drift apart, and tiles that share
  /// operands no longer read them from L2 at the same time, which halves its rate (docs/notes).
  /// Until then the next segments are found. False: the line has ended.
  __device__ bool pick_main(Task* out) {
    int32_t ticket{-1};
    for (;; s_.cursor.look_ahead(x_.plan)) {
      if (ticket < 0 && *static_cast<volatile int32_t*>(&s_.begun) >= handed_on_) {
        clock_.lap(cuda::RoleTime::kSchedulerLoader);
        ticket = atomicAdd(x_.launch_word(LaunchCounter::kMainTicket), 1);
      }
      if (ticket < 0) continue;
      if (s_.cursor.knows(ticket)) break;
      if (s_.cursor.is_behind_end()) return false;
    }
    s_.cursor.decode(ticket, out);
    return true;
  }

  const Context<P>& x_;
  WorkerSmem& s_;
  int32_t num_sums_;
  int32_t until_look_{kLookEvery};
  int32_t handed_on_{0};
  Step step_{Step::kTask};
  cuda::RoleClock clock_;
};

template <class P>
__device__ inline void scheduler_role(const Context<P>& x, WorkerSmem& s) {
  const bool first{cuda::lane_id() == 0};
  Scheduler<P> scheduler{x, s};
  if (first) scheduler.start();
  for (;;) {
    if (first) scheduler.pick();
    __syncwarp();
    const Step step{s.pick.step};
    if (step == Step::kEnd) break;
    const Line line{step == Step::kTask ? Line::kMain : Line::kCombine};
    const bool looks{step == Step::kLook};
    const bool past_end{looks && s.pick.task.row >= x.plan.token_blocks()};
    const bool ready{!past_end && cuda::check_waits(x, line, s.pick.task, !looks)};
    if (!ready && !looks) break;  // aborted
    if (first) scheduler.take(ready);
    __syncwarp();
  }
  if (first) scheduler.stop();
}

}  // namespace monomoe::sm90
