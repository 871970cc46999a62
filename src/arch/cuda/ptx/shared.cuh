// Shared memory: a block's own, loads and stores of fragments. PTX ISA 9.7.9.16 (stmatrix).
#pragma once

#include <cstdint>

namespace monomoe::ptx {

/// Of a value that is the same in all lanes of a converged warp: in a register that they share.
__device__ __forceinline__ uint32_t uniform(uint32_t v) {
  return __reduce_max_sync(0xFFFFFFFFU, v);
}

/// What the launch asked for, aligned to 1024 bytes.
__device__ __forceinline__ uint8_t* dynamic_shared() {
  extern __shared__ __align__(1024) uint8_t raw[];
  return raw;
}

/// A word that other threads of the block, or of its cluster, change.
__device__ __forceinline__ int32_t load_volatile(const int32_t& word) {
  return *static_cast<const volatile int32_t*>(&word);
}

__device__ __forceinline__ uint4 load_shared_16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}

/// stmatrix: four 8 x 8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix
/// i / 8.
__device__ __forceinline__ void store_matrices(uint32_t at, uint32_t a, uint32_t b, uint32_t c,
                                               uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

}  // namespace monomoe::ptx
