// What the last block of a launch that gave up leaves behind: the rest of the fault record, and NaN
// in every output, since nobody may take them for results.
#pragma once

#include <cstdint>

#include "arch/cuda/launch.h"
#include "arch/cuda/ptx/memory.cuh"
#include "base/dtype.h"

namespace monomoe::cuda {

/// [depth, rows, cols] of bf16 or fp32, by the threads of one block. `data` may be null.
__device__ inline void fill_nan(void* data, bool is_f32, int64_t depth, int64_t rows, int64_t cols,
                                int64_t matrix, int64_t row, int64_t col) {
  if (data == nullptr) return;
  constexpr uint16_t kNanBf16{0x7FC0};
  for (int64_t r{0}; r < depth * rows; ++r) {
    const int64_t first{r / rows * matrix + r % rows * row};
    for (int64_t i{threadIdx.x}; i < cols; i += blockDim.x) {
      if (is_f32) {
        static_cast<float*>(data)[first + i * col] = __uint_as_float(uint32_t{kNanBf16} << 16U);
      } else {
        static_cast<Bf16*>(data)[first + i * col] = Bf16{kNanBf16};
      }
    }
  }
}

/// What the launch knows besides what the wait that gave up has written down.
__device__ inline void complete_record(const Launch& l, uint32_t epoch) {
  FaultRecord* const f{l.fault};
  if (*static_cast<volatile int32_t*>(&f->set) != 1) return;
  const Dims& d{l.plan.dims};
  const LaunchWord* const words{l.heaps[d.rank].view.words};
  const int32_t peer{f->peer};
  f->reason = static_cast<int32_t>(peer >= 0 ? FaultReason::kCalls : FaultReason::kWait);
  f->rank = d.rank;
  f->backward = l.plan.backward ? 1 : 0;
  f->epoch = epoch;
  f->num_words = d.ranks;
  for (int32_t i{0}; i < d.ranks; ++i) {
    f->epochs[i] = static_cast<uint32_t>(ptx::load_relaxed_sys(&words[i].stamp) >> 32U);
  }
  if (peer >= 0) {
    __threadfence_system();  // what was written before the stamps
    f->own = words[d.rank];
    f->other = words[peer];
  }
  ptx::store_release_sys(&f->set, 2);
}

/// All outputs of this rank, whichever pass. Outputs of the other pass are null.
__device__ inline void spoil_outputs(const Launch& l) {
  const Dims& d{l.plan.dims};
  const int64_t experts{d.local_experts()};
  const bool f32{l.grads.store != GradStore::kBf16};
  const auto grad = [&](const GradOut& g, int64_t depth, int64_t rows, int64_t cols) {
    fill_nan(g.data, f32, depth, rows, cols, g.matrix, g.row, 1);
  };
  fill_nan(l.y, false, 1, d.tokens, d.hidden, 0, l.y_row, 1);
  if (!l.plan.backward) return;
  fill_nan(l.dtopk_weights.data, true, 1, d.tokens, d.top_k, 0, l.dtopk_weights.row,
           l.dtopk_weights.col);
  grad(l.grads.gate, experts, d.inter, d.hidden);
  grad(l.grads.up, experts, d.inter, d.hidden);
  grad(l.grads.down, experts, d.hidden, d.inter);
  grad(l.grads.shared_gate, 1, d.shared, d.hidden);
  grad(l.grads.shared_up, 1, d.shared, d.hidden);
  grad(l.grads.shared_down, 1, d.hidden, d.shared);
  grad(l.grads.shared_score, 1, 1, d.hidden);
}

/// By the last block of an aborted launch, once all others have left.
__device__ __noinline__ void leave_aborted(const Launch& l, uint32_t epoch) {
  if (threadIdx.x == 0) complete_record(l, epoch);
  spoil_outputs(l);
}

}  // namespace monomoe::cuda
