// The instantiations, and what surrounds the roles.
#include "arch/cuda/mover.cuh"
#include "arch/cuda/schedule.cuh"
#include "arch/cuda/spoil.cuh"
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

/// Pairs of blocks that come first compute; the last `comm_workers` blocks of a launch (rounded up
/// to pairs, at most half) only move rows.
__device__ bool only_moves(const cuda::Launch& l, int32_t arrived) {
  const int32_t pairs{static_cast<int32_t>(gridDim.x) / kPair};
  return arrived / kPair >= pairs - min_of(ceil_div(l.comm_workers, kPair), pairs / 2);
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

/// Tells every peer which call this is. Every block says the same, so that whatever it signals
/// later comes after it.
template <bool kBackward>
__device__ void tell_peers(const cuda::Launch& l, const PassSmem<kBackward>& s) {
  const Dims& d{l.plan.dims};
  if (d.ranks == 1 || static_cast<int32_t>(threadIdx.x) >= d.ranks) return;
  const LaunchWord word{launch_word(s.plan, l.odd)};
  LaunchWord* const to{l.heaps[threadIdx.x].view.words + d.rank};
  to->hash = word.hash;
  to->dims = word.dims;
  __threadfence_system();
  ptx::store_relaxed_sys(&to->stamp, word.stamp);
}

/// Barriers, the plan with its epoch, this launch's half of the counters. An aborted group's launch
/// touches no peer.
template <bool kBackward>
__device__ void begin_worker(const cuda::Launch& l, PassSmem<kBackward>& s) {
  const uint32_t epoch{l.state->epoch + 1};
  const int32_t half{l.counter_state->half};
  int32_t* const counters{l.counters + half * l.counter_capacity};
  if (threadIdx.x == 0) {
    for (int32_t i{0}; i < kStages; ++i) {
      ptx::barrier_init(&s.full[i], 1);
      ptx::barrier_init(&s.empty[i], kPair);
    }
    for (int32_t i{0}; i < kConsumers; ++i) {
      ptx::barrier_init(&s.turn[i], 1);
    }
    for (int32_t i{0}; i < kQueue; ++i) {
      ptx::barrier_init(&s.queue_full[i], 1);
      ptx::barrier_init(&s.stored[i], kGroupThreads / cuda::kLanes);
      ptx::barrier_init(&s.queue_empty[i], kPair * kQueueReaders);
    }
    for (int32_t i{0}; i < kBatches; ++i) {
      ptx::barrier_init(&s.batch_full[i], 1);
      ptx::barrier_init(&s.batch_empty[i], 1);
    }
    for (cuda::MoveSlots& m : s.movers) {
      for (uint64_t& full : m.full) ptx::barrier_init(&full, 1);
    }
    s.begun = 0;
    s.counters = counters;
    s.counter_layout = l.counter_layout;
    s.aborted = ptx::load_relaxed_sys(l.heaps[l.plan.dims.rank].view.abort);
    ptx::fence_barrier_init();
    s.plan = fix_plan<kBackward>(l.plan);
    s.plan.epoch = epoch;
    keep_starts(l, s);
    const bool leads{ptx::cluster_rank() == kLeader};
    if (leads) {
      s.arrived = atomicAdd(counters + static_cast<int32_t>(LaunchCounter::kArrived), kPair);
    }
    if (leads && s.arrived == 0) {
      l.counter_state->extent[half] = static_cast<int32_t>(l.counter_layout.words);
    }
    cuda::pause(l, cuda::PauseAt::kLaunch);
  }
  ptx::cluster_sync();  // barriers of both blocks are there, and the leader's number
  if (threadIdx.x == 0 && ptx::cluster_rank() != kLeader) {
    // Both do the same: one may have seen an abort that the other has not.
    const auto of_leader = [](const int32_t& word) {
      return static_cast<int32_t>(ptx::load_cluster(ptx::cluster_address(&word, kLeader)));
    };
    s.arrived = of_leader(s.arrived) + 1;
    s.aborted = of_leader(s.aborted);
  }
  __syncthreads();
  if (s.aborted == 0) tell_peers(l, s);
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

/// Flags that this launch did not use must not grow so old that they look raised. Nobody polls a
/// flag of this rank any more: every row that a peer pulled has been pushed and summed.
__device__ void renew_flags(const cuda::RankState& state, uint32_t epoch) {
  for (int32_t a{0}; a < state.num_arrays; ++a) {
    const cuda::FlagArray& array{state.arrays[a]};
    for (int64_t i{threadIdx.x}; i < array.count; i += kThreads) {
      array.flags[i] = static_cast<int32_t>(epoch);
    }
  }
}

/// The last block to leave ends the epoch; after a fault it makes the outputs useless.
template <class P>
__device__ void end_worker(const Context<P>& x, WorkerSmem& s) {
  __syncwarp();
  ptx::cluster_sync();  // nobody arrives at barriers of a block that has left
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
  if (renews_flags(x.plan.epoch)) renew_flags(*x.launch.state, x.plan.epoch);
  if (cuda::aborted(x)) cuda::leave_aborted(x.launch, x.plan.epoch);
}

template <bool kBackward>
__device__ __forceinline__ void run_worker(const cuda::Launch& launch) {
  auto& s = *reinterpret_cast<PassSmem<kBackward>*>(ptx::dynamic_shared());
  begin_worker(launch, s);
  const Context<FixedPlan<kBackward>> x{launch, s.plan, s.counters, s.counter_layout, s.arrived};
  const int32_t group{static_cast<int32_t>(threadIdx.x) / kGroupThreads};
  const bool moves{only_moves(launch, s.arrived)};
  if (s.aborted != 0) return end_worker(x, s);  // nothing is begun
  if (group == 0) {
    ptx::give_registers<kProducerRegisters>();
    const int32_t warp{static_cast<int32_t>(threadIdx.x) / cuda::kLanes};
    if (moves || warp == kMoverWarp) {
      cuda::mover_loop(x, moves ? cuda::RowPipe{&s.movers[warp], s.stages[warp], kWideMoveBytes}
                                : cuda::RowPipe{&s.movers[warp], s.moves[0], kMoveBytes});
    } else if (warp == kLoaderWarp) {
      cuda::by_one_lane([&] { loader_role(x, s); });
    } else if (warp == kSchedulerWarp) {
      if (ptx::cluster_rank() == kLeader) {
        scheduler_role(x, s);
      } else {
        picker_role(x, s);
      }
    } else {
      signal_role(x, s);
    }
  } else {
    ptx::take_registers<kConsumerRegisters>();
    if (!moves) {
      consumer_role(
          x, s, [&](const Consumer& c, const Work& w, const StageCursor& begin, const Turn& turn) {
            if constexpr (kBackward) {
              run_backward_task(x, s, c, w, begin, turn);
            } else {
              run_forward_task(x, s, c, w, begin, turn);
            }
          });
    }
  }
  end_worker(x, s);
}

__global__ __cluster_dims__(kPair)
    __launch_bounds__(kThreads,
                      1) void forward_kernel(const __grid_constant__ cuda::Launch launch) {
  run_worker<false>(launch);
}

__global__ __cluster_dims__(kPair)
    __launch_bounds__(kThreads,
                      1) void backward_kernel(const __grid_constant__ cuda::Launch launch) {
  run_worker<true>(launch);
}

__global__ __launch_bounds__(cuda::kScheduleThreads, 1) void schedule_kernel(
    const __grid_constant__ cuda::ScheduleLaunch launch) {
  cuda::schedule_block(launch, reinterpret_cast<int32_t*>(ptx::dynamic_shared()));
}

/// Do the launches of all ranks run at the same time? One thread a rank.
__global__ void meet_kernel(const __grid_constant__ cuda::MeetLaunch launch) {
  atomicAdd(&launch.meeting->here, 1);
  const uint64_t begin{ptx::global_nanoseconds()};
  while (ptx::load_relaxed_gpu(&launch.meeting->here) < launch.ranks) {
    if (ptx::load_relaxed_gpu(&launch.meeting->given_up) != 0) return;
    if (ptx::global_nanoseconds() - begin > launch.limit_ns) {
      atomicExch(&launch.meeting->given_up, ptx::load_relaxed_gpu(&launch.meeting->here));
      return;
    }
  }
}

}  // namespace

const void* schedule_kernel_address() { return reinterpret_cast<const void*>(&schedule_kernel); }
const void* pass_kernel_address(bool backward) {
  return backward ? reinterpret_cast<const void*>(&backward_kernel)
                  : reinterpret_cast<const void*>(&forward_kernel);
}
const void* meet_kernel_address() { return reinterpret_cast<const void*>(&meet_kernel); }

}  // namespace monomoe::sm90
