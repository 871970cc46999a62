// Consumer role: a warpgroup that multiplies whole tiles; the two of a worker alternate.
//
// Waits    queue entries, its turn, full stages
// Reads    stages in shared memory
// Writes   by epilogue.cuh and combine.cuh
// Signals  empty[stage], the other's turn, the counters of graph.h
// Registers 128 accumulators a thread of 224
// Timeline entry idx belongs to warpgroup idx mod 2: turn -> main loop -> give turn -> epilogue,
//          which runs during the other's main loop. A task without loads passes the turn on.
#pragma once

#include "arch/sm90/combine.cuh"
#include "arch/sm90/epilogue.cuh"
#include "arch/sm90/load.cuh"
#include "arch/sm90/mma.cuh"
#include "arch/sm90/turn.cuh"

namespace monomoe::sm90 {

/// How the operands lie in the stages: bits of wgmma and of its descriptors.
template <Feed kFeed>
struct Majors {
  static constexpr bool kMnA{kFeed == Feed::kWgrad};
  static constexpr bool kMnB{kFeed != Feed::kForward};

  /// From A's descriptor to that of B, behind A's two halves.
  static constexpr uint32_t kToB{descriptor(kMnB, 2 * kHalfBytes) - descriptor(kMnA, 0)};
  static constexpr uint32_t kStepA{kMnA ? kStepMnMajor : kStepKMajor};
  static constexpr uint32_t kStepB{kMnB ? kStepMnMajor : kStepKMajor};
};

/// 128 (or 64) rows x 128 columns over `k_blocks` stages, in the warpgroup's turn. `goes_on`: the
/// accumulators hold a sum. `behind`: stages of the task that come then, for its epilogue.
///
/// A stage's instructions must take less time than its products, and are not far from it: the next
/// stage is looked at behind this one's products, and descriptors lie in uniform registers, else
/// each product waits for four moves to them (docs/notes).
template <Feed kFeed, bool kTwoHalves>
__device__ __forceinline__ void main_loop(WorkerSmem& s, const Consumer& c, StageCursor at,
                                          const Turn& turn, int32_t k_blocks, int32_t behind,
                                          bool goes_on, float (&d0)[64], float (&d1)[64]) {
  using M = Majors<kFeed>;
  const uint32_t stages{ptx::smem_address(s.stages)};
  const Releases releases{s};
  bool is_full{false};
  int32_t previous{0};
  int32_t k{0};
  turn.wait();
  MONOMOE_ROLLED
  do {
    const uint32_t stage{stages + static_cast<uint32_t>(at.stage) * kStageBytes};
    const uint32_t a{ptx::uniform(descriptor(M::kMnA, stage))};
    if (!is_full) ptx::barrier_wait(&s.full[at.stage], at.phase);
    const uint32_t b{a + M::kToB};
    ptx::mma_fence();
#pragma unroll
    for (int32_t step = 0; step < kBlockK / 16; ++step) {
      const bool add{goes_on || (k | step) != 0};
      ptx::mma_64x128x16<M::kMnA, M::kMnB>(d0, a + step * M::kStepA, b + step * M::kStepB, add);
      if constexpr (kTwoHalves) {
        ptx::mma_64x128x16<M::kMnA, M::kMnB>(d1, a + kStepHalf + step * M::kStepA,
                                             b + step * M::kStepB, add);
      }
    }
    ptx::mma_commit();
    StageCursor next{at};
    next.next();
    is_full = ptx::barrier_test(&s.full[next.stage], next.phase);
    if (k > 0) {
      ptx::mma_wait<1>();
      if (c.thread == 0) releases.release(previous);
    }
    previous = at.stage;
    at = next;
  } while (++k < k_blocks);
  // After two stages the products of the first are done, so all warps have had their turn.
  if (k_blocks == 1) ptx::mma_wait<0>();
  // The products of the last stage may still run: its stage is released after the wait.
  if (c.thread == 0) {
    MONOMOE_ROLLED
    for (; behind > 0; --behind, at.next()) ptx::barrier_wait(&s.full[at.stage], at.phase);
    turn.give();
  }
  ptx::mma_wait<0>();
  ptx::hold(d0);
  if constexpr (kTwoHalves) ptx::hold(d1);
  if (c.thread != 0) return;
  releases.release(previous);
  turn.clock->lap(cuda::RoleTime::kConsumerLoop);
}

/// Gives the turn away unused. Without products nothing holds the warps together: a slow one must
/// have seen its turn before the other warpgroup can give the next.
__device__ __forceinline__ void pass_turn(const Consumer& c, const Turn& turn) {
  turn.wait();
  c.sync();
  if (c.thread == 0) turn.give();
}

/// The stages of an entry with nothing to do.
__device__ inline void drain(WorkerSmem& s, const Consumer& c, const Work& w, StageCursor at,
                             const Turn& turn) {
  turn.wait();
  c.sync();  // all have had their turn
  if (c.thread != 0) return;
  for (int32_t k{0}; k < w.k_blocks; ++k, at.next()) {
    ptx::barrier_wait(&s.full[at.stage], at.phase);
    release_stage(s, at.stage);
  }
  turn.give();
}

/// A product and its epilogue. The epilogues stand here once, whatever the number of halves.
template <class P>
__device__ inline void run_forward_products(const Context<P>& x, WorkerSmem& s, const Consumer& c,
                                            const Work& w, const StageCursor& begin,
                                            const Turn& turn) {
  float d0[64];
  float d1[64];
  const bool two_halves{w.rows > kHalfTile};
  if (two_halves) {
    main_loop<Feed::kForward, true>(s, c, begin, turn, w.k_blocks, 0, false, d0, d1);
  } else {
    main_loop<Feed::kForward, false>(s, c, begin, turn, w.k_blocks, 0, false, d0, d1);
  }
  if (w.kind == static_cast<int32_t>(Kind::kGateUp) ||
      w.kind == static_cast<int32_t>(Kind::kSharedGateUp)) {
    const GateUpOut out{gate_up_out(x, w)};
    gate_up_half(x, c, w, out, d0, 0);
    if (two_halves) gate_up_half(x, c, w, out, d1, 1);
  } else {
    down_half(x, s, c, w, d0, 0);
    if (two_halves) down_half(x, s, c, w, d1, 1);
  }
}

/// One task of this warpgroup.
template <class P>
__device__ inline void run_forward_task(const Context<P>& x, WorkerSmem& s, const Consumer& c,
                                        const Work& w, const StageCursor& begin, const Turn& turn) {
  if (w.kind == static_cast<int32_t>(Kind::kCombine)) {
    combine(x, s, c, w, begin, turn);
  } else if (w.k_blocks > 0) {
    run_forward_products(x, s, c, w, begin, turn);
  } else {
    pass_turn(c, turn);
    shared_score(x, c, w);
  }
}

/// Are the results read by TMA or bulk copies? Then each thread that has stored some fences, which
/// waits for its stores.
__device__ inline bool has_async_readers(const Work& w) {
  return w.feed != Feed::kWgrad && w.kind != static_cast<int32_t>(Kind::kCombine);
}

/// An entry of the own warpgroup.
template <class P, class Run>
__device__ inline void run_entry(const Context<P>& x, WorkerSmem& s, const Consumer& c,
                                 const Work& w, const Progress& at, cuda::RoleClock* clock,
                                 const Run& run) {
  if (pushes(w)) find_targets(x, s, c, w);
  const Turn turn{s, c, at.idx, clock};
  if (w.kind == Work::kIdle) {
    drain(s, c, w, StageCursor{at.fills}, turn);
  } else {
    run(c, w, StageCursor{at.fills}, turn);
  }
  if (has_async_readers(w)) ptx::fence_proxy_async();
  if (c.thread == 0) {
    clock->lap(w.kind == static_cast<int32_t>(Kind::kCombine) ? cuda::RoleTime::kConsumerCombine
                                                              : cuda::RoleTime::kConsumerEpilogue);
  }
}

/// `run`: run_forward_task or run_backward_task.
template <class P, class Run>
__device__ inline void consumer_role(const Context<P>& x, WorkerSmem& s, const Run& run) {
  cuda::RoleClock clock{x.launch};
  const auto progress = [&s]() -> Progress& {
    const Consumer c{s};
    return s.progress[c.group * 4 + c.warp];
  };
  progress() = {0, 0};
  __syncwarp();
  for (;;) {
    const Consumer c{s};
    const Progress at{progress()};
    const Work& w{wait_entry(s, at.idx)};
    if (w.kind == Work::kStop) return;
    if (c.thread == 0) clock.lap(cuda::RoleTime::kConsumerQueue);
    __syncwarp();  // all lanes know where they are
    if (c.lane == 0) progress() = {at.idx + 1, (at.fills + w.k_blocks) % (2 * kStages)};
    const bool own{at.idx % kConsumers == c.group};
    if (own) run_entry(x, s, c, w, at, &clock, run);
    __syncwarp();
    const Consumer after{s};
    const int32_t idx{progress().idx - 1};
    if (after.lane != 0) continue;
    if (idx % kConsumers == after.group) {
      tell_stored(s, idx);
    } else {
      release_entry(s, idx);
    }
  }
}

}  // namespace monomoe::sm90
