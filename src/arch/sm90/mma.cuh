// Shared-memory descriptors of wgmma. PTX ISA 9.7.15.5.1.
#pragma once

#include <cstdint>

#include "arch/cuda/ptx/barrier.cuh"
#include "arch/cuda/ptx/wgmma.cuh"

namespace monomoe::sm90 {

/// Descriptor of a bf16 operand with 128-byte swizzle, as TMA wrote it in boxes of 64 x 64.
/// K-major: rows of 64 k-values; 1024 bytes from 8 rows to the next 8.
__device__ __forceinline__ uint64_t k_major(const void* p) {
  const uint64_t address{ptx::smem_address(p)};
  return ((address & 0x3FFFFU) >> 4U) | (1ULL << 16U) | (64ULL << 32U) | (1ULL << 62U);
}
/// MN-major: boxes of 64 columns by 64 k; 8192 bytes from one box to the next 64 columns.
__device__ __forceinline__ uint64_t mn_major(const void* p) {
  const uint64_t address{ptx::smem_address(p)};
  return ((address & 0x3FFFFU) >> 4U) | (512ULL << 16U) | (64ULL << 32U) | (1ULL << 62U);
}

/// Descriptor steps in units of 16 bytes.
constexpr uint64_t kStepKMajor{2};     // 16 k further in a K-major operand
constexpr uint64_t kStepMnMajor{128};  // 16 k further in an MN-major operand
constexpr uint64_t kStepHalf{512};     // the next 64 rows

}  // namespace monomoe::sm90
