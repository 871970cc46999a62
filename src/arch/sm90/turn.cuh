// Turns of the two consumer warpgroups.
//
// Parity alone can't tell fill n of a stage from n + 2. So a warpgroup waits for stages in its turn
// only, and gives it when all of its own are full: the other could go through the whole ring while
// one is under way, and find the fill after next there.
#pragma once

#include <cstdint>

#include "arch/cuda/role_clock.cuh"
#include "arch/sm90/epilogue.cuh"

namespace monomoe::sm90 {

/// That of a queue entry.
struct Turn {
  WorkerSmem& s;
  const Consumer& c;
  uint32_t phase;
  bool is_free;  // the first
  cuda::RoleClock* clock;

  __device__ __forceinline__ Turn(WorkerSmem& s_, const Consumer& c_, int32_t idx,
                                  cuda::RoleClock* clock_)
      : s{s_},
        c{c_},
        phase{static_cast<uint32_t>(idx / kConsumers + 1 - c.group) & 1U},
        is_free{idx == 0},
        clock{clock_} {}

  __device__ __forceinline__ void wait() const {
    if (!is_free) ptx::barrier_wait(&s.turn[c.group], phase);
    if (c.thread == 0) clock->lap(cuda::RoleTime::kConsumerTurn);
  }
  /// One thread, when all warps have had it.
  __device__ __forceinline__ void give() const { ptx::barrier_arrive(&s.turn[c.group ^ 1]); }
};

}  // namespace monomoe::sm90
