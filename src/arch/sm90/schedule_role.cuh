// Picker and scheduler: one warp each, in the two blocks of a pair. Together they feed both blocks;
// one warp would not keep up with small tasks (docs/notes).
//
// Waits    picker: until the loader is nearly done with the tasks before. Scheduler: for each task
//          the counters of graph.h, a lane each (bounded)
// Reads    tickets, tables
// Writes   the queues in shared memory of both blocks
// Timeline picker: segments ahead -> tickets, several of small tasks -> decode, describe, a lane
// for
//          each task -> scheduler; now and then a look at the combine line. Scheduler: lanes wait
//          side by side -> hand on what can begin. The queue lets the next task's loads start
//          during this one's epilogue
#pragma once

#include <cstddef>
#include <cstdint>

#include "arch/cuda/ptx/shared.cuh"
#include "arch/cuda/role_clock.cuh"
#include "arch/cuda/signal.cuh"
#include "arch/sm90/smem_plan.h"
#include "plan/order.h"

namespace monomoe::sm90 {

using cuda::Context;

/// The n-th of all that go through a ring of kSize places: its place and the phase of its barriers.
template <int32_t kSize>
struct RingPosition {
  int32_t slot;
  uint32_t phase;
  __device__ explicit RingPosition(int32_t n)
      : slot{n % kSize}, phase{static_cast<uint32_t>(n / kSize) & 1U} {}
};
using QueuePosition = RingPosition<kQueue>;
using BatchPosition = RingPosition<kBatches>;

/// For the scheduler: an entry that both blocks are done with.
__device__ inline void begin_entry(WorkerSmem& s, int32_t idx) {
  const QueuePosition at{idx};
  ptx::barrier_wait(&s.queue_empty[at.slot], at.phase ^ 1U);
}
/// Then handed on to block `block`.
__device__ inline void hand_on(WorkerSmem& s, int32_t idx, uint32_t block) {
  ptx::barrier_arrive_cluster(ptx::cluster_address(&s.queue_full[QueuePosition{idx}.slot], block));
}

/// For its readers in both blocks; each sees every entry, and releases it by one thread.
__device__ inline const Work& wait_entry(WorkerSmem& s, int32_t idx) {
  const QueuePosition at{idx};
  ptx::barrier_wait_cluster(&s.queue_full[at.slot], at.phase);
  return s.queue[at.slot];
}
__device__ inline void release_entry(WorkerSmem& s, int32_t idx) {
  ptx::barrier_arrive_remote(
      ptx::cluster_address(&s.queue_empty[QueuePosition{idx}.slot], kLeader));
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

/// The picker takes its next ticket when at most so many stages of those before are still to be
/// begun by the loader: about what tickets, decoding, waits and handing on take (docs/notes).
constexpr int32_t kStagesAhead{40};

constexpr int32_t kLookEvery{4};  // batches between two looks at the combine line

/// A batch of small tasks holds so many stages, if it can: work for the time that the picker and
/// the scheduler need for it.
constexpr int32_t kBatchStages{24};

/// The picker's first lane: tickets, and where they lie.
template <class P>
class Picker {
 public:
  __device__ Picker(const Context<P>& x, WorkerSmem& s)
      : x_{x}, s_{s}, cursor_{s.pick.picker.cursor}, clock_{x.launch} {}

  __device__ void start() { cursor_.start(x_.plan, kPair); }

  __device__ void next() {
    if (until_look_ == 0) {
      until_look_ = kLookEvery;
      if (pick_sums(Step::kLook, ptx::load_relaxed_gpu(sum_ticket(x_)))) return;
    }
    if (!ended_) {
      --until_look_;
      ended_ = !pick_main();
      if (!ended_) return;
    }
    const bool stops{ptx::load_volatile(s_.aborted) != 0};
    if (stops || !pick_sums(Step::kSums, atomicAdd(sum_ticket(x_), 1))) set(Step::kEnd, 0, 0);
  }

  /// The batch is described: what the loader has to load for it. The next one is cut for tasks like
  /// its last.
  __device__ void count() {
    const Batch& b{s_.pick.picker.batch};
    if (b.step != Step::kTasks) return;
    int32_t stages{0};
    MONOMOE_ROLLED
    for (int32_t i{0}; i < b.tickets; ++i) {
      stages = b.work[i][0].k_blocks;
      picked_ += stages;
    }
    size_ = 1;
    while (size_ < kBatch && size_ * stages < kBatchStages) ++size_;
  }

  static __device__ int32_t* sum_ticket(const Context<P>& x) {
    return x.launch_word(LaunchCounter::kCombineTicket);
  }

 private:
  __device__ void set(Step step, int32_t first, int32_t tickets) {
    Batch& b{s_.pick.picker.batch};
    b.step = step;
    b.first = first;
    b.tickets = tickets;
  }

  /// Tickets are taken just in time: workers that hoard them drift apart, and tiles that share
  /// operands no longer read them from L2 at the same time, which halves its rate (docs/notes).
  /// Until then the next segments are found. False: the line has ended, or the scheduler gave up.
  __device__ bool pick_main() {
    int32_t first{-1};
    int32_t tickets{0};
    MONOMOE_ROLLED
    for (; tickets == 0; cursor_.look_ahead(x_.plan)) {
      if (first < 0 && picked_ - ptx::load_volatile(s_.begun) <= kStagesAhead) {
        clock_.lap(cuda::RoleTime::kSchedulerLoader);
        first = atomicAdd(x_.launch_word(LaunchCounter::kMainTicket), size_);
      }
      if (first < 0) {
        if (ptx::load_volatile(s_.aborted) != 0) return false;
      } else if (cursor_.knows(first)) {
        tickets = cursor_.count(first, size_);
      } else if (cursor_.is_behind_end()) {
        return false;
      }
    }
    set(Step::kTasks, first, tickets);
    clock_.lap(cuda::RoleTime::kSchedulerDecode);
    return true;
  }

  /// A ticket of the combine line holds two token blocks too. False: the line has ended.
  __device__ bool pick_sums(Step step, int32_t ticket) {
    set(step, ticket, 1);
    return ticket * kPair < x_.plan.token_blocks();
  }

  const Context<P>& x_;
  WorkerSmem& s_;
  MainCursor& cursor_;
  int32_t until_look_{kLookEvery};
  int32_t picked_{0};  // stages of the main line
  int32_t size_{1};    // of the next batch
  bool ended_{false};
  cuda::RoleClock clock_;
};

/// The entries of both blocks, a lane each. Without a second task the other block idles along.
template <class P>
__device__ inline void describe_batch(const Context<P>& x, WorkerSmem& s) {
  Batch& batch{s.pick.picker.batch};
  const int32_t i{cuda::lane_id() / kPair};
  const int32_t block{cuda::lane_id() % kPair};
  if (i >= batch.tickets) return;
  const int32_t ticket{batch.first + i};
  int32_t member{block};
  Task t{};
  if (batch.step == Step::kTasks) {
    const Segment& segment{s.pick.picker.cursor.segment_of(ticket)};
    if (block >= segment.tasks_of(ticket)) member = 0;
    segment.decode(x.plan, ticket, member, &t);
  } else {
    if (ticket * kPair + block >= x.plan.token_blocks()) member = 0;
    t.kind = Kind::kCombine;
    t.row = ticket * kPair + member;
  }
  Work& w{batch.work[i][block]};
  describe(x.plan, t, &w);
  if (member != block) w.kind = Work::kIdle;
}

/// Then: which operand the blocks share.
__device__ inline void describe_share(Batch& batch) {
  const int32_t i{cuda::lane_id() / kPair};
  if (i >= batch.tickets || batch.work[i][1].kind == Work::kIdle) return;
  batch.work[i][cuda::lane_id() % kPair].share =
      shared_by(batch.work[i][0].task, batch.work[i][1].task);
}

/// To a place at the scheduler that is free. Stores complete on its barrier: nobody waits for them,
/// as a release would.
__device__ inline void hand_to_scheduler(WorkerSmem& s, const Batch& batch, int32_t n) {
  const BatchPosition at{n};
  ptx::barrier_wait(&s.batch_empty[at.slot], at.phase ^ 1U);
  const uint32_t full{ptx::cluster_address(&s.batch_full[at.slot], kLeader)};
  const uint32_t from{ptx::smem_address(&batch)};
  const uint32_t to{ptx::cluster_address(&s.pick.batches[at.slot], kLeader)};
  const auto bytes =
      static_cast<uint32_t>(offsetof(Batch, work)) +
      static_cast<uint32_t>(batch.tickets) * static_cast<uint32_t>(sizeof(*batch.work));
  if (cuda::lane_id() == 0) ptx::barrier_expect_remote(full, bytes);
  MONOMOE_ROLLED
  for (uint32_t b{static_cast<uint32_t>(cuda::lane_id()) * 16}; b < bytes; b += cuda::kLanes * 16) {
    ptx::store_async_16(to + b, ptx::load_shared_16(from + b), full);
  }
}

template <class P>
__device__ inline void picker_role(const Context<P>& x, WorkerSmem& s) {
  const bool first{cuda::lane_id() == 0};
  Batch& batch{s.pick.picker.batch};
  Picker<P> picker{x, s};
  if (first) picker.start();
  MONOMOE_ROLLED
  for (int32_t n{0};; ++n) {
    if (first) picker.next();
    __syncwarp();
    describe_batch(x, s);
    __syncwarp();
    describe_share(batch);
    if (first) picker.count();
    __syncwarp();
    hand_to_scheduler(s, batch, n);
    if (batch.step == Step::kEnd) return;
    __syncwarp();  // all have read the step
  }
}

/// What the picker found; `release_batch` gives the place back.
__device__ inline const Batch& wait_batch(WorkerSmem& s, int32_t n) {
  const BatchPosition at{n};
  ptx::barrier_wait_cluster(&s.batch_full[at.slot], at.phase);
  return s.pick.batches[at.slot];
}
__device__ inline void release_batch(WorkerSmem& s, int32_t n) {
  __syncwarp();
  if (cuda::lane_id() != 0) return;
  ptx::barrier_arrive_remote(
      ptx::cluster_address(&s.batch_empty[BatchPosition{n}.slot], 1 - kLeader));
}

/// Hands the entries of `n` tickets on to both blocks.
__device__ inline void hand_on_tickets(WorkerSmem& s, const Work (*work)[kPair], int32_t n,
                                       int32_t idx) {
  constexpr auto kWords = static_cast<int32_t>(sizeof(Work) / 16);
  const int32_t lane{cuda::lane_id()};
  if (lane < n) begin_entry(s, idx + lane);
  __syncwarp();
  const uint32_t from{ptx::smem_address(work)};
  MONOMOE_ROLLED
  for (int32_t i{lane}; i < n * kPair * kWords; i += cuda::kLanes) {
    const int32_t entry{i / kWords};
    const Work* const to{&s.queue[QueuePosition{idx + entry / kPair}.slot]};
    ptx::store_cluster_16(ptx::cluster_address(to, static_cast<uint32_t>(entry % kPair)) +
                              static_cast<uint32_t>(i - entry * kWords) * 16,
                          ptx::load_shared_16(from + static_cast<uint32_t>(i) * 16));
  }
  __syncwarp();
  if (lane < n * kPair) hand_on(s, idx + lane / kPair, static_cast<uint32_t>(lane % kPair));
}

__device__ inline void hand_on_stop(WorkerSmem& s, int32_t idx) {
  const auto block = static_cast<uint32_t>(cuda::lane_id());
  if (block >= kPair) return;
  begin_entry(s, idx);
  const Work& to{s.queue[QueuePosition{idx}.slot]};
  ptx::store_cluster(ptx::cluster_address(&to.kind, block), static_cast<uint32_t>(Work::kStop));
  hand_on(s, idx, block);
}

/// How many lanes look at the waits of a task, if `tickets` of a batch are left: 1 << this.
__device__ inline int32_t lanes_shift(int32_t tickets) {
  static_assert(kBatch <= 4);
  return tickets == 1 ? 4 : tickets == 2 ? 3 : 2;
}

/// How many tickets of a batch, from `begun` on, go ahead? Waits for the first; the others count if
/// they need no waiting. All lanes. 0 for what was only looked at, and if the launch is aborted.
template <class P>
__device__ inline int32_t may_begin(const Context<P>& x, const Batch& batch, int32_t begun) {
  const int32_t shift{lanes_shift(batch.tickets - begun)};
  const int32_t mine{min_of(begun * kPair + (cuda::lane_id() >> shift), batch.tickets * kPair - 1)};
  const Line line{batch.step == Step::kTasks ? Line::kMain : Line::kCombine};
  const bool waits{mine / kPair == begun && batch.step != Step::kLook};
  const bool ok{
      cuda::check_waits(x, line, batch.work[mine / kPair][mine % kPair].task, 1 << shift, waits)};
  const uint32_t open{__ballot_sync(cuda::kFullWarp, !ok)};
  const int32_t left{batch.tickets - begun};
  if (batch.step != Step::kLook) {
    if (open == 0) return left;
    return min_of(left, (__ffs(static_cast<int>(open)) - 1) >> (lanes_shift(left) + 1));
  }
  bool takes{false};
  if (open == 0 && cuda::lane_id() == 0) {
    takes = atomicCAS(Picker<P>::sum_ticket(x), batch.first, batch.first + 1) == batch.first;
  }
  return __any_sync(cuda::kFullWarp, takes) != 0 ? 1 : 0;
}

template <class P>
__device__ inline void scheduler_role(const Context<P>& x, WorkerSmem& s) {
  cuda::RoleClock clock{x.launch};
  const bool first{cuda::lane_id() == 0};
  int32_t handed_on{0};
  int32_t n{0};
  MONOMOE_ROLLED
  for (;; ++n) {
    const Batch& batch{wait_batch(s, n)};
    if (batch.step == Step::kEnd) break;
    int32_t begun{0};
    MONOMOE_ROLLED
    while (begun < batch.tickets) {
      const int32_t ready{may_begin(x, batch, begun)};
      if (first) clock.lap(cuda::RoleTime::kSchedulerWait);
      if (ready == 0) break;
      hand_on_tickets(s, &batch.work[begun], ready, handed_on);
      if (first) clock.lap(cuda::RoleTime::kSchedulerQueue);
      handed_on += ready;
      begun += ready;
    }
    const bool goes_on{begun == batch.tickets || batch.step == Step::kLook};
    release_batch(s, n);
    if (goes_on) continue;
    // Aborted: the picker must not wait for entries that never come.
    if (first) ptx::store_cluster(ptx::cluster_address(&s.aborted, 1 - kLeader), 1);
    MONOMOE_ROLLED
    while (wait_batch(s, ++n).step != Step::kEnd) release_batch(s, n);
    break;
  }
  hand_on_stop(s, handed_on);
}

}  // namespace monomoe::sm90
