// Loader role: one thread feeds the stages by TMA.
//
// Waits    queue entries, empty stages
// Reads    operands in global memory (written by movers and epilogues of any SM)
// Writes   stages in shared memory; signals full[stage]
// Timeline entry -> fence.proxy.async (what the scheduler acquired was written by ordinary
//          stores) -> k blocks in order -> pre-activations for the epilogue -> next entry
#pragma once

#include "arch/cuda/ptx/tma.cuh"
#include "arch/sm90/preact.cuh"
#include "arch/sm90/schedule_role.cuh"

namespace monomoe::sm90 {

/// Fill `n` of the stages, counted modulo 2 * kStages: its stage and the phase of its barriers.
struct StageCursor {
  int32_t stage;
  uint32_t phase;
  __device__ explicit StageCursor(int32_t n)
      : stage{n < kStages ? n : n - kStages}, phase{n < kStages ? 0U : 1U} {}
  /// `n` fills later.
  [[nodiscard]] __device__ StageCursor after(int32_t n) const {
    return StageCursor{(stage + (phase != 0 ? kStages : 0) + n) % (2 * kStages)};
  }
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1U;
    }
  }
};

/// The loader's wait for free stages; it tells the picker how far it is with the main line, in
/// stages.
class BegunStages {
 public:
  __device__ explicit BegunStages(WorkerSmem& s) : s_{s} {}
  /// Sums are no part of the main line.
  __device__ void begin(bool is_main) { step_ = is_main ? 1 : 0; }
  /// Begins with a stage: the next one each time.
  __device__ void wait(const StageCursor& at) {
    begun_ += step_;
    *static_cast<volatile int32_t*>(&s_.begun) = begun_;
    if (!is_free_) ptx::barrier_wait(&s_.empty[at.stage], at.phase ^ 1U);
    is_free_ = false;
  }
  /// Looks at the next one meanwhile: a wait takes long, also for what is free.
  __device__ void look(const StageCursor& next) {
    is_free_ = ptx::barrier_test(&s_.empty[next.stage], next.phase ^ 1U);
  }

 private:
  WorkerSmem& s_;
  int32_t begun_{0};
  int32_t step_{1};
  bool is_free_{false};
};

/// The next stage, free; `bytes` are coming.
__device__ __forceinline__ void open_stage(WorkerSmem& s, const StageCursor& at, BegunStages& begun,
                                           uint32_t bytes) {
  begun.wait(at);
  ptx::barrier_expect(&s.full[at.stage], bytes);
}

/// A box into one block, or into both.
template <bool kBoth>
__device__ __forceinline__ void load_half(WorkerSmem& s, int32_t stage, int32_t half,
                                          const cuda::TensorMap* map, int32_t x, int32_t y,
                                          int32_t z) {
  uint8_t* const to{s.stages[stage] + half * kHalfBytes};
  if constexpr (kBoth) {
    ptx::load_box_both(to, map, &s.full[stage], x, y, z);
  } else {
    ptx::load_box(to, map, &s.full[stage], x, y, z);
  }
}

/// Takes the boxes of backward's tasks (work.h) to the stages. Of the operand that the blocks share
/// each loads its half, for both; of one with 64 rows only the first block has a half.
template <Share kShare, class P>
class StageSink {
 public:
  __device__ StageSink(const Context<P>& x, WorkerSmem& s, const Work& w, StageCursor& at,
                       BegunStages& begun)
      : launch_{x.launch},
        s_{s},
        at_{at},
        begun_{begun},
        block_{static_cast<int32_t>(ptx::cluster_rank())},
        two_halves_{w.rows > kHalfTile} {}

  /// Only A can be tall.
  __device__ const cuda::TensorMap* map(int32_t which, bool is_tall) const {
    return is_tall && kShare != Share::kA ? &launch_.tall[which] : &launch_.maps[which];
  }
  __device__ void begin() {
    open_stage(s_, at_, begun_, static_cast<uint32_t>((two_halves_ ? 4 : 3) * kHalfBytes));
  }
  __device__ void load_a_rows(const cuda::TensorMap* map, int32_t x, int32_t y, int32_t z) const {
    if constexpr (kShare == Share::kA) {
      if (two_halves_ || block_ == 0) both(map, block_, x, y + block_ * kHalfTile, z);
    } else {
      own(map, 0, x, y, z);
    }
  }
  __device__ void load_a_cols(const cuda::TensorMap* map, int32_t x, int32_t y, int32_t z) const {
    if constexpr (kShare == Share::kA) {
      if (two_halves_ || block_ == 0) both(map, block_, x + block_ * kHalfTile, y, z);
    } else {
      own(map, 0, x, y, z);
      if (two_halves_) own(map, 1, x + kHalfTile, y, z);
    }
  }
  __device__ void load_b_cols(const cuda::TensorMap* map, int32_t x, int32_t y, int32_t z) const {
    if constexpr (kShare == Share::kB) {
      both(map, 2 + block_, x + block_ * kHalfTile, y, z);
    } else {
      own(map, 2, x, y, z);
      own(map, 3, x + kHalfTile, y, z);
    }
  }
  __device__ void end() {
    at_.next();
    begun_.look(at_);
  }

 private:
  __device__ void own(const cuda::TensorMap* map, int32_t half, int32_t x, int32_t y,
                      int32_t z) const {
    load_half<false>(s_, at_.stage, half, map, x, y, z);
  }
  __device__ void both(const cuda::TensorMap* map, int32_t half, int32_t x, int32_t y,
                       int32_t z) const {
    load_half<true>(s_, at_.stage, half, map, x, y, z);
  }

  const cuda::Launch& launch_;
  WorkerSmem& s_;
  StageCursor& at_;
  BegunStages& begun_;
  int32_t block_;  // of the pair
  bool two_halves_;
};

/// A stage that nothing comes to.
__device__ inline void fill_nothing(WorkerSmem& s, StageCursor& at, BegunStages& begun) {
  begun.wait(at);
  ptx::barrier_arrive(&s.full[at.stage]);
  at.next();
}

/// Pre-activations of a tile, for dgrad_down's epilogue: a stage for each 64 rows.
template <class P>
__device__ inline void load_preact(const Context<P>& x, WorkerSmem& s, const Work& w,
                                   StageCursor& at, BegunStages& begun) {
  const PreactTile from{preact_tile(x, w)};
  MONOMOE_ROLLED
  for (int32_t half{0}; half < w.k_behind; ++half) {
    if (half * kHalfTile >= w.rows) {
      fill_nothing(s, at, begun);
      continue;
    }
    open_stage(s, at, begun, static_cast<uint32_t>(from.bytes));
    ptx::bulk_load(s.stages[at.stage], from.data + half * from.half,
                   static_cast<uint32_t>(from.bytes), &s.full[at.stage]);
    at.next();
  }
}

template <Share kShare, class P>
__device__ inline void load_backward(const Context<P>& x, WorkerSmem& s, const Work& w,
                                     StageCursor& at, BegunStages& begun) {
  StageSink<kShare, P> sink{x, s, w, at, begun};
  if (w.feed == Feed::kDgrad) {
    walk_dgrad(w, sink);
    if (w.k_behind > 0) load_preact(x, s, w, at, begun);
  } else {
    walk_wgrad(w, sink);
  }
}

/// The sums of a block of tokens: slots of one token lie behind each other, so whole rows are one
/// copy.
template <class P>
__device__ inline void load_sums(const Context<P>& x, WorkerSmem& s, const Work& w, StageCursor& at,
                                 BegunStages& begun) {
  const Dims& d{x.plan.dims};
  const SumShape shape{sum_shape(d)};
  const int32_t begin{w.task.row * x.plan.tile.sum_tokens};
  const int32_t end{begin + w.rows};
  const Bf16* const slots{x.launch.heaps[d.rank].slots};
  const Bf16* const shared{x.launch.template region<Bf16>(Region::kSharedOut)};
  MONOMOE_ROLLED
  for (int32_t token{begin}; token < end; ++token) {
    MONOMOE_ROLLED
    for (int32_t chunk{0}; chunk < shape.chunks; ++chunk) {
      const int32_t col{chunk * shape.cols};
      const int32_t cols{shape.cols_of(d, chunk)};
      for (int32_t range{0}; range < shape.ranges; ++range, at.next()) {
        const int32_t rows{shape.slots_of(d, range)};
        const int32_t all_rows{rows + (shape.has_shared(range) ? 1 : 0)};
        open_stage(s, at, begun, static_cast<uint32_t>(all_rows * cols * 2));
        uint64_t* const full{&s.full[at.stage]};
        uint8_t* to{s.stages[at.stage]};
        const Bf16* from{slots + (int64_t{token} * d.top_k + range * shape.slots) * d.hidden + col};
        const int32_t at_once{shape.chunks == 1 ? rows : 1};
        const int32_t bytes{at_once * cols * 2};
        MONOMOE_ROLLED
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
  const int32_t filled{w.rows * shape.chunks * shape.ranges};
  MONOMOE_ROLLED
  for (int32_t i{filled}; i < w.k_blocks; ++i) fill_nothing(s, at, begun);
}

/// The k blocks of a forward task. A loop for each way to share: what a loop needs stays in
/// registers.
template <Share kShare, class P>
__device__ inline void load_forward(const Context<P>& x, WorkerSmem& s, const Work& w,
                                    StageCursor& at, BegunStages& begun) {
  const cuda::Launch& l{x.launch};
  const auto block = static_cast<int32_t>(ptx::cluster_rank());
  const bool two_halves{w.rows > kHalfTile};
  const bool one_b{w.b_map0 == w.b_map1};  // 128 consecutive rows of one weight
  const bool loads_a{kShare != Share::kA || two_halves || block == 0};
  const bool loads_b1{kShare != Share::kB && !one_b};
  const cuda::TensorMap* const a{two_halves && kShare != Share::kA ? &l.tall[w.a_map]
                                                                   : &l.maps[w.a_map]};
  const int32_t a_half{kShare == Share::kA ? block : 0};
  const int32_t a_row{w.a_row + a_half * kHalfTile};
  const int32_t b_map{kShare == Share::kB && block == 1 ? w.b_map1 : w.b_map0};
  const cuda::TensorMap* const b{kShare != Share::kB && one_b ? &l.tall[b_map] : &l.maps[b_map]};
  const cuda::TensorMap* const b1{&l.maps[w.b_map1]};
  const int32_t b_half{kShare == Share::kB ? 2 + block : 2};
  const int32_t b_row1{w.b_row1};
  const int32_t b_row{kShare == Share::kB && block == 1 ? b_row1 : w.b_row0};
  const int32_t b_z{w.task.expert};
  const uint32_t bytes{static_cast<uint32_t>((two_halves ? 4 : 3) * kHalfBytes)};
  const int32_t end{w.k_blocks * kBlockK};
  MONOMOE_ROLLED
  for (int32_t col{0}; col < end; col += kBlockK) {
    open_stage(s, at, begun, bytes);
    if (loads_a) load_half<kShare == Share::kA>(s, at.stage, a_half, a, col, a_row, 0);
    load_half<kShare == Share::kB>(s, at.stage, b_half, b, col, b_row, b_z);
    if (loads_b1) load_half<false>(s, at.stage, 3, b1, col, b_row1, b_z);
    at.next();
    begun.look(at);
  }
}

template <Share kShare, class P>
__device__ inline void load_products(const Context<P>& x, WorkerSmem& s, const Work& w,
                                     StageCursor& at, BegunStages& begun) {
  if (x.plan.backward && w.feed != Feed::kForward) {
    load_backward<kShare>(x, s, w, at, begun);
  } else {
    load_forward<kShare>(x, s, w, at, begun);
  }
}

template <class P>
__device__ inline void loader_role(const Context<P>& x, WorkerSmem& s) {
  StageCursor at{0};
  BegunStages begun{s};
  for (int32_t idx{0};; ++idx) {
    const Work& w{wait_entry(s, idx)};
    if (w.kind == Work::kStop) return;
    begun.begin(w.task.kind != Kind::kCombine);
    if (w.k_blocks > 0) ptx::fence_proxy_async();
    if (w.kind == Work::kIdle) {
      MONOMOE_ROLLED
      for (int32_t k{0}; k < w.k_blocks; ++k) fill_nothing(s, at, begun);
    } else if (w.kind == static_cast<int32_t>(Kind::kCombine)) {
      load_sums(x, s, w, at, begun);
    } else if (w.share == Share::kB) {
      load_products<Share::kB>(x, s, w, at, begun);
    } else if (w.share == Share::kA) {
      load_products<Share::kA>(x, s, w, at, begun);
    } else {
      load_products<Share::kNothing>(x, s, w, at, begun);
    }
    release_entry(s, idx);
  }
}

}  // namespace monomoe::sm90
