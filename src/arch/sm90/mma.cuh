// Shared-memory descriptors of wgmma. PTX ISA 9.7.15.5.1.
#pragma once

#include <cstdint>

#include "arch/cuda/ptx/wgmma.cuh"
#include "base/hd.h"

namespace monomoe::sm90 {

/// Lower half of the descriptor of a bf16 operand with 128-byte swizzle, as TMA wrote it in boxes
/// of 64 x 64. K-major: rows of 64 k-values. MN-major: boxes of 64 columns by 64 k; 8192 bytes from
/// one box to the next 64 columns. `at`: shared address; in a cluster it has the block's rank on
/// top.
MONOMOE_HD constexpr uint32_t descriptor(bool mn_major, uint32_t at) {
  return (at & 0x3FFFFU) >> 4U | (mn_major ? 512U : 1U) << 16U;
}

/// Descriptor steps in units of 16 bytes.
constexpr uint32_t kStepKMajor{2};     // 16 k further in a K-major operand
constexpr uint32_t kStepMnMajor{128};  // 16 k further in an MN-major operand
constexpr uint32_t kStepHalf{512};     // the next 64 rows

}  // namespace monomoe::sm90
