// Bulk copies. PTX ISA 9.7.9.25 (cp.async.bulk), 9.7.9.27 (cp.async.bulk.tensor).
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

/// The same into both blocks of a pair, at the same place of each; completes on `b` of each.
__device__ __forceinline__ void load_box_both(void* dst, const void* map, uint64_t* b, int32_t x,
                                              int32_t y, int32_t z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(smem_address(dst)),
      "l"(map), "r"(smem_address(b)), "r"(x), "r"(y), "r"(z), "h"(static_cast<uint16_t>(3))
      : "memory");
}

/// `bytes` (a multiple of 16) into shared memory; completes on `b`.
__device__ __forceinline__ void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* b) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(smem_address(dst)),
      "l"(src), "r"(bytes), "r"(smem_address(b))
      : "memory");
}

/// `bytes` (a multiple of 16) from shared memory; a group of its own.
__device__ __forceinline__ void bulk_store(void* dst, const void* src, uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;" ::"l"(dst),
      "r"(smem_address(src)), "r"(bytes)
      : "memory");
}

/// All but the last kPending bulk stores of this thread have read their shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// All bulk stores of this thread are complete: visible to it.
__device__ __forceinline__ void bulk_wait_all() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace monomoe::ptx
