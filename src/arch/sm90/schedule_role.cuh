// Scheduler role: one thread of a worker.
//
// Waits    for each task, the counters of graph.h (bounded)
// Reads    tickets, tables
// Writes   the queue in shared memory
// Timeline ticket -> decode, wait, hand on -> once the loader has begun, the next ticket; now and
//          then a look for a combine task that is ready. The queue lets the next task's loads start
//          during this one's epilogue
#pragma once

#include <cstdint>

#include "arch/cuda/role_clock.cuh"
#include "arch/cuda/signal.cuh"
#include "arch/sm90/smem_plan.h"
#include "plan/order.h"

namespace monomoe::sm90 {

using cuda::Context;

/// The queue's producer end.
class QueueWriter {
 public:
  __device__ explicit QueueWriter(WorkerSmem& s) : s_{s} {}

  __device__ Work* begin() {
    ptx::barrier_wait(&s_.queue_empty[at_], phase_ ^ 1U);
    return &s_.queue[at_];
  }
  __device__ void end() {
    ptx::barrier_arrive(&s_.queue_full[at_]);
    if (++at_ == kQueue) {
      at_ = 0;
      phase_ ^= 1U;
    }
  }

 private:
  WorkerSmem& s_;
  int32_t at_{0};
  uint32_t phase_{0};
};

/// The queue's consumer end; every reader sees every entry.
class QueueReader {
 public:
  __device__ explicit QueueReader(WorkerSmem& s) : s_{s} {}
  __device__ const Work& front() {
    ptx::barrier_wait(&s_.queue_full[at_], phase_);
    return s_.queue[at_];
  }
  /// One thread of the role.
  __device__ void release() { ptx::barrier_arrive(&s_.queue_empty[at_]); }
  __device__ void next() {
    if (++at_ == kQueue) {
      at_ = 0;
      phase_ ^= 1U;
    }
  }

 private:
  WorkerSmem& s_;
  int32_t at_{0};
  uint32_t phase_{0};
};

/// What the scheduler does next.
enum class Step : uint8_t { kTask, kLook, kLastSums };

constexpr int32_t kLookEvery{4};  // tasks between two looks at the combine line: a look costs 1 us

/// Tickets are taken just in time, once the loader has begun with all that was handed on: workers
/// that hoard them drift apart, and tiles that share operands no longer read them from L2 at the
/// same time, which halves its rate (docs/notes).
__device__ inline void wait_for_loader(const WorkerSmem& s, int32_t handed_on) {
  while (*static_cast<const volatile int32_t*>(&s.begun) < handed_on) {
  }
}

/// The loop has one place that decodes, waits and hands on: three copies of the wait lists would
/// not stay in the instruction cache.
template <class P>
__device__ inline void scheduler_role(const Context<P>& x, WorkerSmem& s) {
  QueueWriter queue{s};
  s.cursor.start(x.plan);
  cuda::RoleClock clock{x.launch};
  int32_t* const main_word{x.launch_word(LaunchCounter::kMainTicket)};
  int32_t* const sum_word{x.launch_word(LaunchCounter::kCombineTicket)};
  const int32_t num_sums{x.plan.token_blocks()};
  int32_t ticket{atomicAdd(main_word, 1)};
  int32_t until_look{kLookEvery};
  int32_t handed_on{0};
  Step step{Step::kTask};
  for (;;) {
    Task t{};
    if (step == Step::kTask && !s.cursor.seek(x.plan, ticket, &t)) step = Step::kLastSums;
    if (step != Step::kTask) {
      t.kind = Kind::kCombine;
      t.row = step == Step::kLook ? ptx::load_relaxed_gpu(sum_word) : atomicAdd(sum_word, 1);
      if (t.row >= num_sums) {
        if (step == Step::kLastSums) break;
        step = Step::kTask;
        continue;
      }
    }
    clock.lap(cuda::RoleTime::kSchedulerDecode);
    const Line line{step == Step::kTask ? Line::kMain : Line::kCombine};
    bool takes{cuda::check_waits(x, line, t, step != Step::kLook)};
    clock.lap(cuda::RoleTime::kSchedulerWait);
    if (!takes && step != Step::kLook) break;  // aborted
    if (step == Step::kLook) takes = takes && atomicCAS(sum_word, t.row, t.row + 1) == t.row;
    if (takes) {
      Work* const entry{queue.begin()};
      clock.lap(cuda::RoleTime::kSchedulerQueue);
      describe(x.plan, t, entry);
      queue.end();
      wait_for_loader(s, ++handed_on);
    }
    if (step == Step::kTask) {
      ticket = atomicAdd(main_word, 1);
      if (--until_look == 0) {
        step = Step::kLook;
        until_look = kLookEvery;
      }
    } else if (step == Step::kLook && !takes) {
      step = Step::kTask;
    }
  }
  queue.begin()->kind = Work::kStop;
  queue.end();
}

}  // namespace monomoe::sm90
