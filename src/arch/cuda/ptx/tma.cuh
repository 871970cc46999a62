// Bulk tensor copies. PTX ISA 9.7.9.27 (cp.async.bulk.tensor).
#pragma once

#include <cstdint>

#include "arch/cuda/ptx/barrier.cuh"

namespace monomoe::ptx {

/// Box at (x, y, z), x innermost, into shared memory; completes on `b`. Outside of the tensor: 0.
__device__ __forceinline__ void load_box(void* dst, const void* map, uint64_t* b, int32_t x,
                                         int32_t y, int32_t z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(smem_address(dst)),
      "l"(map), "r"(smem_address(b)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

}  // namespace monomoe::ptx
