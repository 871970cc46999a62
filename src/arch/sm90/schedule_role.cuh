// Picker and scheduler: one warp each, in the two blocks of a pair. Together they feed both blocks;
// one warp would not keep up with small tasks (docs/notes).
//
// Waits    picker: until the loader is nearly done with the tasks before. Scheduler: for each task
//          the counters of graph.h, a lane each (bounded)
// Reads    tickets, tables
// Writes   the queues in shared memory of both blocks
// Timeline picker: segments ahead -> ticket -> decode, describe, a lane for each block ->
// scheduler;
//          now and then a look at the combine line. Scheduler: lanes wait side by side -> hand on.
//          The queue lets the next task's loads start during this one's epilogue
#pragma once

#include <cstdint>

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
using PickPosition = RingPosition<kPicks>;

/// For the scheduler: an entry that both blocks are done with.
__device__ inline Work* begin_entry(WorkerSmem& s, int32_t idx) {
  const QueuePosition at{idx};
  ptx::barrier_wait(&s.queue_empty[at.slot], at.phase ^ 1U);
  return &s.queue[at.slot];
}
/// Then, by lane `block` of its warp, handed on to block `block`.
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

/// How far the loader is with the main line, in stages. The picker takes its next ticket when at
/// most `kAhead` stages of those before are still to be begun: about what ticket, decoding, waits
/// and handing on take (docs/notes).
class BegunStages {
 public:
  static constexpr int32_t kAhead{40};

  __device__ explicit BegunStages(WorkerSmem& s) : s_{s} {}
  /// Sums are no part of the main line.
  __device__ void begin(bool is_main) { step_ = is_main ? 1 : 0; }
  __device__ void step() {
    begun_ += step_;
    *static_cast<volatile int32_t*>(&s_.begun) = begun_;
  }

 private:
  WorkerSmem& s_;
  int32_t begun_{0};
  int32_t step_{1};
};

constexpr int32_t kLookEvery{4};  // tasks between two looks at the combine line

/// The picker's first lane: tickets, and where they lie.
template <class P>
class Picker {
 public:
  __device__ Picker(const Context<P>& x, WorkerSmem& s) : x_{x}, s_{s}, clock_{x.launch} {}

  __device__ void start() { s_.cursor.start(x_.plan, kPair); }

  __device__ void next() {
    Pick& out{s_.pick};
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
    if (stops || !pick_sums(Step::kSums, atomicAdd(sum_ticket(x_), 1))) out.step = Step::kEnd;
  }

  /// The pick is described: what the loader has to load for it.
  __device__ void count() {
    if (s_.pick.step == Step::kTask) picked_ += s_.pick.work[0].k_blocks;
  }

  static __device__ int32_t* sum_ticket(const Context<P>& x) {
    return x.launch_word(LaunchCounter::kCombineTicket);
  }

 private:
  /// Tickets are taken just in time: workers that hoard them drift apart, and tiles that share
  /// operands no longer read them from L2 at the same time, which halves its rate (docs/notes).
  /// Until then the next segments are found. False: the line has ended, or the scheduler gave up.
  __device__ bool pick_main() {
    int32_t ticket{-1};
    for (;; s_.cursor.look_ahead(x_.plan)) {
      if (ticket < 0 && picked_ - ptx::load_volatile(s_.begun) <= BegunStages::kAhead) {
        clock_.lap(cuda::RoleTime::kSchedulerLoader);
        ticket = atomicAdd(x_.launch_word(LaunchCounter::kMainTicket), 1);
      }
      if (ticket < 0) {
        if (ptx::load_volatile(s_.aborted) != 0) return false;
        continue;
      }
      if (s_.cursor.knows(ticket)) break;
      if (s_.cursor.is_behind_end()) return false;
    }
    s_.pick.step = Step::kTask;
    s_.pick.ticket = ticket;
    s_.pick.tasks = s_.cursor.tasks_of(ticket);
    clock_.lap(cuda::RoleTime::kSchedulerDecode);
    return true;
  }

  /// A ticket of the combine line holds two token blocks too. False: the line has ended.
  __device__ bool pick_sums(Step step, int32_t ticket) {
    s_.pick.step = step;
    s_.pick.ticket = ticket;
    s_.pick.tasks = min_of(kPair, x_.plan.token_blocks() - ticket * kPair);
    return s_.pick.tasks > 0;
  }

  const Context<P>& x_;
  WorkerSmem& s_;
  int32_t until_look_{kLookEvery};
  int32_t picked_{0};  // stages of the main line
  bool ended_{false};
  cuda::RoleClock clock_;
};

/// The entries of both blocks, a lane each. Without a second task the other block idles along.
template <class P>
__device__ inline void describe_pick(const Context<P>& x, WorkerSmem& s) {
  Pick& pick{s.pick};
  const int32_t lane{cuda::lane_id()};
  if (lane >= kPair || pick.step == Step::kEnd) return;
  const bool works{lane < pick.tasks};
  const int32_t member{works ? lane : 0};
  Task t{};
  if (pick.step == Step::kTask) {
    s.cursor.decode(x.plan, pick.ticket, member, &t);
  } else {
    t.kind = Kind::kCombine;
    t.row = pick.ticket * kPair + member;
  }
  describe(x.plan, t, &pick.work[lane]);
  if (!works) pick.work[lane].kind = Work::kIdle;
}

/// Copies words to the same place of the other block. All lanes.
template <class T>
__device__ inline void copy_to_peer(const T& from, const T* to) {
  static_assert(sizeof(T) % 4 == 0);
  const uint32_t at{ptx::cluster_address(to, ptx::cluster_rank() ^ 1U)};
  for (int32_t i{cuda::lane_id()}; i < static_cast<int32_t>(sizeof(T) / 4); i += cuda::kLanes) {
    ptx::store_cluster(at + static_cast<uint32_t>(i) * 4,
                       reinterpret_cast<const uint32_t*>(&from)[i]);
  }
  __syncwarp();
}

template <class P>
__device__ inline void picker_role(const Context<P>& x, WorkerSmem& s) {
  const bool first{cuda::lane_id() == 0};
  Picker<P> picker{x, s};
  if (first) picker.start();
  for (int32_t n{0};; ++n) {
    if (first) picker.next();
    __syncwarp();
    describe_pick(x, s);
    __syncwarp();
    if (first) picker.count();
    if (first && s.pick.step == Step::kTask && s.pick.tasks == kPair) {
      const Share share{shared_by(s.pick.work[0].task, s.pick.work[1].task)};
      s.pick.work[0].share = share;
      s.pick.work[1].share = share;
    }
    const PickPosition at{n};
    ptx::barrier_wait(&s.pick_empty[at.slot], at.phase ^ 1U);
    __syncwarp();
    copy_to_peer(s.pick, &s.picks[at.slot]);
    if (first) {
      ptx::barrier_arrive_cluster(ptx::cluster_address(&s.pick_full[at.slot], kLeader));
    }
    if (s.pick.step == Step::kEnd) return;
    __syncwarp();  // all have read the step
  }
}

/// What the picker found; `release_pick` gives the place back.
__device__ inline const Pick& wait_pick(WorkerSmem& s, int32_t n) {
  const PickPosition at{n};
  ptx::barrier_wait_cluster(&s.pick_full[at.slot], at.phase);
  return s.picks[at.slot];
}
__device__ inline void release_pick(WorkerSmem& s, int32_t n) {
  __syncwarp();
  if (cuda::lane_id() != 0) return;
  ptx::barrier_arrive_remote(
      ptx::cluster_address(&s.pick_empty[PickPosition{n}.slot], 1 - kLeader));
}

/// Hands the entries on to both blocks.
__device__ inline void hand_on_pair(WorkerSmem& s, const Pick& pick, int32_t idx) {
  Work* const own{begin_entry(s, idx)};
  const int32_t lane{cuda::lane_id()};
  for (int32_t i{lane}; i < static_cast<int32_t>(sizeof(Work) / 4); i += cuda::kLanes) {
    reinterpret_cast<uint32_t*>(own)[i] = reinterpret_cast<const uint32_t*>(&pick.work[0])[i];
  }
  copy_to_peer(pick.work[1], own);
  if (lane < kPair) hand_on(s, idx, static_cast<uint32_t>(lane));
}

__device__ inline void hand_on_stop(WorkerSmem& s, int32_t idx) {
  Work* const own{begin_entry(s, idx)};
  if (cuda::lane_id() == 0) own->kind = Work::kStop;
  __syncwarp();
  copy_to_peer(own->kind, &own->kind);
  if (cuda::lane_id() < kPair) hand_on(s, idx, static_cast<uint32_t>(cuda::lane_id()));
}

/// Do the tasks of a pick go ahead? All lanes. False for what was only looked at, and if the launch
/// is aborted.
template <class P>
__device__ inline bool may_begin(const Context<P>& x, const Pick& pick) {
  const Line line{pick.step == Step::kTask ? Line::kMain : Line::kCombine};
  const bool looks{pick.step == Step::kLook};
  const Task& other{pick.work[pick.tasks - 1].task};
  if (!cuda::check_waits(x, line, pick.work[0].task, other, !looks)) return false;
  if (!looks) return true;
  bool takes{false};
  if (cuda::lane_id() == 0) {
    takes = atomicCAS(Picker<P>::sum_ticket(x), pick.ticket, pick.ticket + 1) == pick.ticket;
  }
  return __any_sync(cuda::kFullWarp, takes) != 0;
}

template <class P>
__device__ inline void scheduler_role(const Context<P>& x, WorkerSmem& s) {
  cuda::RoleClock clock{x.launch};
  const bool first{cuda::lane_id() == 0};
  int32_t handed_on{0};
  int32_t n{0};
  for (;; ++n) {
    const Pick& pick{wait_pick(s, n)};
    const Step step{pick.step};
    if (step == Step::kEnd) break;
    const bool begins{may_begin(x, pick)};
    if (first) clock.lap(cuda::RoleTime::kSchedulerWait);
    if (begins) hand_on_pair(s, pick, handed_on++);
    release_pick(s, n);
    if (first) clock.lap(cuda::RoleTime::kSchedulerQueue);
    if (begins || step == Step::kLook) continue;
    // Aborted: the picker must not wait for entries that never come.
    if (first) ptx::store_cluster(ptx::cluster_address(&s.aborted, 1 - kLeader), 1);
    while (wait_pick(s, ++n).step != Step::kEnd) release_pick(s, n);
    break;
  }
  hand_on_stop(s, handed_on);
}

}  // namespace monomoe::sm90
