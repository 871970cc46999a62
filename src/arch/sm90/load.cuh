// Loader role: one thread feeds the stages by TMA.
//
// Waits    queue entries, empty stages
// Reads    operands in global memory (written by movers and epilogues of any SM)
// Writes   stages in shared memory; signals full[stage]
// Timeline entry -> fence.proxy.async (what the scheduler acquired was written by ordinary
//          stores) -> k blocks in order -> next entry
#pragma once

#include "arch/cuda/ptx/tma.cuh"
#include "arch/sm90/schedule_role.cuh"

namespace monomoe::sm90 {

/// A ring position: stage and phase.
struct StageCursor {
  int32_t stage{0};
  uint32_t phase{0};
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1U;
    }
  }
  __device__ void skip(int32_t n) {
    const int32_t at{stage + n};
    phase ^= static_cast<uint32_t>(at / kStages) & 1U;
    stage = at % kStages;
  }
};

/// Takes the boxes of backward's tasks (work.h) to the stages.
template <class P>
class StageSink {
 public:
  __device__ StageSink(const Context<P>& x, WorkerSmem& s, StageCursor& at)
      : launch_{x.launch}, s_{s}, at_{at} {}
  __device__ void begin(int32_t halves) {
    ptx::barrier_wait(&s_.empty[at_.stage], at_.phase ^ 1U);
    ptx::barrier_expect(&s_.full[at_.stage], static_cast<uint32_t>(halves * kHalfBytes));
  }
  __device__ void load(const Box& b) {
    const cuda::TensorMap* const map{b.is_tall ? &launch_.tall[b.map] : &launch_.maps[b.map]};
    ptx::load_box(s_.stages[at_.stage] + b.half * kHalfBytes, map, &s_.full[at_.stage], b.x, b.y,
                  b.z);
  }
  __device__ void end() { at_.next(); }

 private:
  const cuda::Launch& launch_;
  WorkerSmem& s_;
  StageCursor& at_;
};

/// True: the task was backward's, and its stages are loaded.
template <class P>
__device__ inline bool load_backward(const Context<P>& x, WorkerSmem& s, const Work& w,
                                     StageCursor& at) {
  if (!x.plan.backward || w.feed == Feed::kForward) return false;
  StageSink<P> sink{x, s, at};
  if (w.k_blocks > 0) ptx::fence_proxy_async();
  if (w.feed == Feed::kDgrad) {
    walk_dgrad(w, sink);
  } else {
    walk_wgrad(w, sink);
  }
  return true;
}

template <class P>
__device__ inline void loader_role(const Context<P>& x, WorkerSmem& s) {
  QueueReader queue{s};
  StageCursor at;
  int32_t begun{0};
  for (;;) {
    const Work& w{queue.front()};
    *static_cast<volatile int32_t*>(&s.begun) = ++begun;
    if (w.kind == Work::kStop) {
      queue.release();
      return;
    }
    if (load_backward(x, s, w, at)) {
      queue.release();
      queue.next();
      continue;
    }
    const bool two_halves{w.rows > 64};
    const bool one_b{w.b_map0 == w.b_map1};  // 128 consecutive rows of one weight
    const cuda::TensorMap* a{two_halves ? &x.launch.tall[w.a_map] : &x.launch.maps[w.a_map]};
    const cuda::TensorMap* b0{one_b ? &x.launch.tall[w.b_map0] : &x.launch.maps[w.b_map0]};
    const cuda::TensorMap* b1{&x.launch.maps[w.b_map1]};
    const uint32_t bytes{static_cast<uint32_t>((two_halves ? 4 : 3) * kHalfBytes)};
    const int32_t a_row{w.a_row};
    const int32_t b_row0{w.b_row0};
    const int32_t b_row1{w.b_row1};
    const int32_t b_z{w.b_z};
    const int32_t k_blocks{w.k_blocks};
    if (k_blocks > 0) ptx::fence_proxy_async();
    for (int32_t k{0}; k < k_blocks; ++k, at.next()) {
      ptx::barrier_wait(&s.empty[at.stage], at.phase ^ 1U);
      uint8_t* const to{s.stages[at.stage]};
      uint64_t* const full{&s.full[at.stage]};
      ptx::barrier_expect(full, bytes);
      ptx::load_box(to, a, full, k * kBlockK, a_row, 0);
      ptx::load_box(to + 2 * kHalfBytes, b0, full, k * kBlockK, b_row0, b_z);
      if (!one_b) ptx::load_box(to + 3 * kHalfBytes, b1, full, k * kBlockK, b_row1, b_z);
    }
    queue.release();
    queue.next();
  }
}

}  // namespace monomoe::sm90
