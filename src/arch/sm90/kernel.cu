// The instantiations, and what surrounds the roles.
#include "arch/cuda/mover.cuh"
#include "arch/cuda/schedule.cuh"
#include "arch/sm90/backward.cuh"
#include "arch/sm90/compute.cuh"
#include "arch/sm90/kernel.h"
#include "arch/sm90/signal_role.cuh"

namespace monomoe::sm90 {
namespace {

constexpr int kProducerRegisters{56};
constexpr int kConsumerRegisters{224};

// Warps of the producer warpgroup; the one left over signals.
constexpr int32_t kLoaderWarp{0};
constexpr int32_t kSchedulerWarp{1};
constexpr int32_t kMoverWarp{2};

/// Who comes first computes; the last `comm_workers` of a launch only move rows.
__device__ bool only_moves(const cuda::Launch& l, int32_t arrived) {
  const int32_t workers{static_cast<int32_t>(gridDim.x)};
  return arrived >= workers - min_of(l.comm_workers, workers / 2);
}

__device__ int32_t num_starts(const Dims& d) { return 2 * d.local_experts() + 1; }

/// Roles look up where experts start and end all the time, and every acquire empties the L1 cache.
template <class Smem>
__device__ void keep_starts(const cuda::Launch& l, Smem& s) {
  if (num_starts(l.plan.dims) > kStartWords) return;
  s.plan.tables.tile_start = s.starts;
  s.plan.tables.rows = s.starts + l.plan.dims.local_experts() + 1;
  s.plan.tables.rows_step = 1;
}

/// Barriers, the plan with its epoch, this launch's half of the counters.
template <bool kBackward>
__device__ void begin_worker(const cuda::Launch& l, PassSmem<kBackward>& s) {
  const uint32_t epoch{l.state->epoch + 1};
  const int32_t half{l.counter_state->half};
  int32_t* const counters{l.counters + half * l.counter_capacity};
  if (threadIdx.x == 0) {
    for (int32_t i{0}; i < kStages; ++i) {
      ptx::barrier_init(&s.full[i], 1);
      ptx::barrier_init(&s.empty[i], 1);
    }
    for (int32_t i{0}; i < kConsumers; ++i) {
      ptx::barrier_init(&s.turn[i], 1);
    }
    for (int32_t i{0}; i < kQueue; ++i) {
      ptx::barrier_init(&s.queue_full[i], 1);
      ptx::barrier_init(&s.stored[i], kGroupThreads / cuda::kLanes);
      ptx::barrier_init(&s.queue_empty[i], kQueueReaders);
    }
    for (cuda::MoveSlots& m : s.movers) {
      for (uint64_t& full : m.full) ptx::barrier_init(&full, 1);
    }
    s.begun = 0;
    s.counters = counters;
    s.counter_layout = l.counter_layout;
    ptx::fence_barrier_init();
    s.plan = fix_plan<kBackward>(l.plan);
    s.plan.epoch = epoch;
    keep_starts(l, s);
    s.arrived = atomicAdd(counters + static_cast<int32_t>(LaunchCounter::kArrived), 1);
    if (s.arrived == 0) {
      l.counter_state->extent[half] = static_cast<int32_t>(l.counter_layout.words);
      const LaunchWord word{epoch, l.plan.backward ? 2U : 1U, l.plan.tables.header->hash, 0};
      for (int32_t r{0}; r < l.plan.dims.ranks; ++r) {
        LaunchWord* const to{l.heaps[r].view.words + l.plan.dims.rank};
        *to = word;
      }
      __threadfence_system();
    }
  }
  __syncthreads();
  if (s.plan.tables.tile_start == s.starts) {
    const int32_t words{num_starts(l.plan.dims)};
    for (auto i = static_cast<int32_t>(threadIdx.x); i < words; i += kThreads) {
      const int32_t tiles{l.plan.dims.local_experts() + 1};
      s.starts[i] = i < tiles ? l.plan.tables.tile_start[i] : expert_rows(l.plan.tables, i - tiles);
    }
  }
  // The other half was used by the launch before; the next launch finds zeros.
  int32_t* const other{l.counters + (1 - half) * l.counter_capacity};
  const int32_t extent{l.counter_state->extent[1 - half]};
  for (int32_t i{s.arrived * kThreads + static_cast<int32_t>(threadIdx.x)}; i < extent;
       i += static_cast<int32_t>(gridDim.x) * kThreads) {
    other[i] = 0;
  }
  __syncthreads();
}

__device__ void fill_nan(Bf16* rows, int64_t ld, int32_t num_rows, int32_t cols) {
  if (rows == nullptr) return;
  for (int32_t r{0}; r < num_rows; ++r) {
    for (int32_t i{static_cast<int32_t>(threadIdx.x)}; i < cols; i += kThreads) {
      rows[r * ld + i] = Bf16{0x7FC0};
    }
  }
}

__device__ void fill_nan(const GradOut& g, GradStore store, int32_t matrices, int32_t rows,
                         int32_t cols) {
  if (g.data == nullptr) return;
  for (int32_t m{0}; m < matrices; ++m) {
    for (int32_t r{0}; r < rows; ++r) {
      const int64_t at{m * g.matrix + r * g.row};
      for (int32_t i{static_cast<int32_t>(threadIdx.x)}; i < cols; i += kThreads) {
        if (store == GradStore::kBf16) {
          static_cast<Bf16*>(g.data)[at + i] = Bf16{0x7FC0};
        } else {
          static_cast<float*>(g.data)[at + i] = __int_as_float(0x7FC00000);
        }
      }
    }
  }
}

/// Everything that backward writes besides dx.
__device__ void fill_gradients(const cuda::Launch& l) {
  const Dims& d{l.plan.dims};
  for (int32_t t{0}; l.dtopk_weights.data != nullptr && t < d.tokens; ++t) {
    for (int32_t k{static_cast<int32_t>(threadIdx.x)}; k < d.top_k; k += kThreads) {
      l.dtopk_weights.at(t, k) = __int_as_float(0x7FC00000);
    }
  }
  const WeightGrads& g{l.grads};
  const int32_t experts{d.local_experts()};
  fill_nan(g.gate, g.store, experts, d.inter, d.hidden);
  fill_nan(g.up, g.store, experts, d.inter, d.hidden);
  fill_nan(g.down, g.store, experts, d.hidden, d.inter);
  fill_nan(g.shared_gate, g.store, 1, d.shared, d.hidden);
  fill_nan(g.shared_up, g.store, 1, d.shared, d.hidden);
  fill_nan(g.shared_down, g.store, 1, d.hidden, d.shared);
  fill_nan(g.shared_score, g.store, 1, 1, d.hidden);
}

/// The last block to leave ends the epoch; after a fault it makes the outputs useless.
template <class P>
__device__ void end_worker(const Context<P>& x, WorkerSmem& s) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    s.begun = atomicAdd(x.launch_word(LaunchCounter::kLeft), 1);
  }
  __syncthreads();
  if (s.begun != static_cast<int32_t>(gridDim.x) - 1) return;
  if (threadIdx.x == 0) {
    x.launch.state->epoch = x.plan.epoch;
    x.launch.counter_state->half ^= 1;
  }
  if (cuda::aborted(x)) {
    fill_nan(x.launch.y, x.launch.y_row, x.plan.dims.tokens, x.plan.dims.hidden);
    if (x.plan.backward) fill_gradients(x.launch);
  }
}

template <bool kBackward>
__device__ __forceinline__ void run_worker(const cuda::Launch& launch) {
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& s = *reinterpret_cast<PassSmem<kBackward>*>(raw);
  begin_worker(launch, s);
  const Context<FixedPlan<kBackward>> x{launch, s.plan, s.counters, s.counter_layout, s.arrived};
  const int32_t group{static_cast<int32_t>(threadIdx.x) / kGroupThreads};
  const bool moves{only_moves(launch, s.arrived)};
  if (group == 0) {
    ptx::give_registers<kProducerRegisters>();
    const int32_t warp{static_cast<int32_t>(threadIdx.x) / cuda::kLanes};
    if (moves || warp == kMoverWarp) {
      cuda::mover_loop(x, moves ? cuda::RowPipe{&s.movers[warp], s.stages[warp], kWideMoveBytes}
                                : cuda::RowPipe{&s.movers[warp], s.moves[0], kMoveBytes});
    } else if (warp == kLoaderWarp) {
      if (cuda::lane_id() == 0) loader_role(x, s);
    } else if (warp == kSchedulerWarp) {
      scheduler_role(x, s);
    } else {
      signal_role(x, s);
    }
  } else {
    ptx::take_registers<kConsumerRegisters>();
    if (!moves) {
      consumer_role(
          x, s,
          [&](const Consumer& c, const Work& w, const StageCursor& begin, cuda::RoleClock* clock) {
            if constexpr (kBackward) {
              run_backward_task(x, s, c, w, begin, clock);
            } else {
              run_forward_task(x, s, c, w, begin, clock);
            }
          });
    }
  }
  end_worker(x, s);
}

__global__ __launch_bounds__(kThreads,
                             1) void forward_kernel(const __grid_constant__ cuda::Launch launch) {
  run_worker<false>(launch);
}

__global__ __launch_bounds__(kThreads,
                             1) void backward_kernel(const __grid_constant__ cuda::Launch launch) {
  run_worker<true>(launch);
}

__global__ __launch_bounds__(cuda::kScheduleThreads) void schedule_kernel(
    const __grid_constant__ cuda::ScheduleLaunch launch) {
  extern __shared__ __align__(1024) uint8_t raw[];
  cuda::schedule_block(launch, reinterpret_cast<int32_t*>(raw));
}

}  // namespace

const void* schedule_kernel_address() { return reinterpret_cast<const void*>(&schedule_kernel); }
const void* pass_kernel_address(bool backward) {
  return backward ? reinterpret_cast<const void*>(&backward_kernel)
                  : reinterpret_cast<const void*>(&forward_kernel);
}

}  // namespace monomoe::sm90
