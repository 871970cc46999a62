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

/// Fill `n` of the stages, counted modulo 2 * kStages: its stage and the phase of its barriers.
struct StageCursor {
  int32_t stage;
  uint32_t phase;
  __device__ explicit StageCursor(int32_t n)
      : stage{n < kStages ? n : n - kStages}, phase{n < kStages ? 0U : 1U} {}
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1U;
    }
  }
};

/// The scheduler takes its next ticket shortly before the loader has issued all of a task: `kAhead`
/// stages before, which is about what ticket, decoding and waits take.
class HandOn {
 public:
  static constexpr int32_t kAhead{12};

  __device__ HandOn(WorkerSmem& s, int32_t begun, int32_t stages)
      : s_{s}, begun_{begun}, left_{max_of(1, stages - kAhead)} {
    if (stages == 0) tell();
  }
  __device__ void step() {
    if (--left_ == 0) tell();
  }

 private:
  __device__ void tell() { *static_cast<volatile int32_t*>(&s_.begun) = begun_; }

  WorkerSmem& s_;
  int32_t begun_;
  int32_t left_;
};

/// Takes the boxes of backward's tasks (work.h) to the stages.
template <class P>
class StageSink {
 public:
  __device__ StageSink(const Context<P>& x, WorkerSmem& s, StageCursor& at, HandOn& hand_on)
      : launch_{x.launch}, s_{s}, at_{at}, hand_on_{hand_on} {}
  __device__ const cuda::TensorMap* map(int32_t which, bool is_tall) {
    return is_tall ? &launch_.tall[which] : &launch_.maps[which];
  }
  __device__ void begin(int32_t halves) {
    hand_on_.step();
    full_ = &s_.full[at_.stage];
    stage_ = s_.stages[at_.stage];
    ptx::barrier_wait(&s_.empty[at_.stage], at_.phase ^ 1U);
    ptx::barrier_expect(full_, static_cast<uint32_t>(halves * kHalfBytes));
  }
  __device__ void load(const cuda::TensorMap* map, int32_t half, int32_t x, int32_t y, int32_t z) {
    ptx::load_box(stage_ + half * kHalfBytes, map, full_, x, y, z);
  }
  __device__ void end() { at_.next(); }

 private:
  const cuda::Launch& launch_;
  WorkerSmem& s_;
  StageCursor& at_;
  HandOn& hand_on_;
  uint64_t* full_{nullptr};
  uint8_t* stage_{nullptr};
};

/// True: the task was backward's, and its stages are loaded.
template <class P>
__device__ inline bool load_backward(const Context<P>& x, WorkerSmem& s, const Work& w,
                                     StageCursor& at, HandOn& hand_on) {
  if (!x.plan.backward || w.feed == Feed::kForward) return false;
  StageSink<P> sink{x, s, at, hand_on};
  if (w.feed == Feed::kDgrad) {
    walk_dgrad(w, sink);
  } else {
    walk_wgrad(w, sink);
  }
  return true;
}

/// The sums of a block of tokens: slots of one token lie behind each other, so whole rows are one
/// copy.
template <class P>
__device__ inline void load_sums(const Context<P>& x, WorkerSmem& s, const Work& w, StageCursor& at,
                                 HandOn& hand_on) {
  const Dims& d{x.plan.dims};
  const SumShape shape{sum_shape(d)};
  const int32_t begin{w.task.row * x.plan.tile.sum_tokens};
  const int32_t end{begin + w.rows};
  const Bf16* const slots{x.launch.heaps[d.rank].slots};
  const Bf16* const shared{x.launch.template region<Bf16>(Region::kSharedOut)};
  for (int32_t token{begin}; token < end; ++token) {
    for (int32_t chunk{0}; chunk < shape.chunks; ++chunk) {
      const int32_t col{chunk * shape.cols};
      const int32_t cols{shape.cols_of(d, chunk)};
      for (int32_t range{0}; range < shape.ranges; ++range, at.next()) {
        const int32_t rows{shape.slots_of(d, range)};
        const int32_t all_rows{rows + (shape.has_shared(range) ? 1 : 0)};
        hand_on.step();
        ptx::barrier_wait(&s.empty[at.stage], at.phase ^ 1U);
        uint64_t* const full{&s.full[at.stage]};
        ptx::barrier_expect(full, static_cast<uint32_t>(all_rows * cols * 2));
        uint8_t* to{s.stages[at.stage]};
        const Bf16* from{slots + (int64_t{token} * d.top_k + range * shape.slots) * d.hidden + col};
        const int32_t at_once{shape.chunks == 1 ? rows : 1};
        const int32_t bytes{at_once * cols * 2};
        for (int32_t k{0}; k < rows; k += at_once) {
          ptx::bulk_load(to, from, static_cast<uint32_t>(bytes), full);
          to += bytes;
          from += d.hidden;
        }
        if (all_rows > rows) {
          ptx::bulk_load(to, shared + int64_t{token} * d.hidden + col,
                         static_cast<uint32_t>(cols * 2), full);
        }
      }
    }
  }
}

/// The k blocks of a forward task.
template <class P>
__device__ inline void load_forward(const Context<P>& x, WorkerSmem& s, const Work& w,
                                    StageCursor& at, HandOn& hand_on) {
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
  for (int32_t k{0}; k < k_blocks; ++k, at.next()) {
    hand_on.step();
    ptx::barrier_wait(&s.empty[at.stage], at.phase ^ 1U);
    uint8_t* const to{s.stages[at.stage]};
    uint64_t* const full{&s.full[at.stage]};
    ptx::barrier_expect(full, bytes);
    ptx::load_box(to, a, full, k * kBlockK, a_row, 0);
    ptx::load_box(to + 2 * kHalfBytes, b0, full, k * kBlockK, b_row0, b_z);
    if (!one_b) ptx::load_box(to + 3 * kHalfBytes, b1, full, k * kBlockK, b_row1, b_z);
  }
}

template <class P>
__device__ inline void loader_role(const Context<P>& x, WorkerSmem& s) {
  StageCursor at{0};
  for (int32_t idx{0};; ++idx) {
    const Work& w{wait_entry(s, idx)};
    if (w.kind == Work::kStop) return;
    HandOn hand_on{s, idx + 1, w.k_blocks};
    if (w.k_blocks > 0) ptx::fence_proxy_async();
    if (w.kind == static_cast<int32_t>(Kind::kCombine)) {
      load_sums(x, s, w, at, hand_on);
    } else if (!load_backward(x, s, w, at, hand_on)) {
      load_forward(x, s, w, at, hand_on);
    }
    release_entry(s, idx);
  }
}

}  // namespace monomoe::sm90
