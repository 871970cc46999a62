// Where the roles of a worker spend their time, in cycles. Built in only with MONOMOE_ROLE_CLOCKS;
// otherwise everything here is empty.
#pragma once

#include <cstdint>

#include "arch/cuda/launch.h"
#include "arch/cuda/ptx/memory.cuh"

namespace monomoe::cuda {

/// Starts at `begin`, adds to a place at each `lap`. One thread of a role uses one.
class RoleClock {
 public:
#ifdef MONOMOE_ROLE_CLOCKS
  __device__ explicit RoleClock(const Launch& l) : to_{l.clocks}, last_{ptx::cycles()} {}
  __device__ void lap(RoleTime what) {
    const uint64_t now{ptx::cycles()};
    atomicAdd(reinterpret_cast<unsigned long long*>(to_) + static_cast<int32_t>(what), now - last_);
    last_ = ptx::cycles();
  }

 private:
  uint64_t* to_;
  uint64_t last_;
#else
  __device__ explicit RoleClock(const Launch& /*l*/) {}
  __device__ void lap(RoleTime /*what*/) {}
#endif
};

}  // namespace monomoe::cuda
