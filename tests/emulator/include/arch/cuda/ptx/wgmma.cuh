// Stands in for src/arch/cuda/ptx/wgmma.cuh. Products are done at once, k ascending.
#pragma once

#include "arch/cuda/ptx/barrier.cuh"

namespace monomoe::ptx {

/// The four warps of a warpgroup come together (WARPGROUP.ARRIVE and .DEPBAR of sm_90).
inline void meet_warpgroup() {
  emulator::meet(100 + static_cast<int32_t>(threadIdx.x / 128), 128, false);
}
inline void mma_fence() { meet_warpgroup(); }
inline void mma_commit() {}
template <int kPending>
void mma_wait() {
  meet_warpgroup();
}
inline void hold(float (&)[64]) {}

/// Element (mn, k) of the operand that a descriptor's lower half shows: 128-byte swizzle, boxes of
/// 64 x 64.
template <bool kMn>
float operand(uint32_t descriptor, uint32_t mn, uint32_t k) {
  const uint32_t base{(descriptor & 0x3FFFU) << 4U};
  const uint32_t at{kMn ? base + k * 128 + mn % 64 * 2 + mn / 64 * 8192 : base + mn * 128 + k * 2};
  uint16_t v;
  std::memcpy(&v, emulator::block().shared + (at ^ (((at >> 7U) & 7U) << 4U)), 2);
  return __uint_as_float(uint32_t{v} << 16U);
}

template <bool kMnA, bool kMnB>
void mma_64x128x16(float (&d)[64], uint32_t a, uint32_t b, bool add) {
  const uint32_t thread{threadIdx.x % 128};
  const uint32_t lane{thread % 32};
  float row[2][16];
  for (uint32_t h{0}; h < 2; ++h) {
    for (uint32_t k{0}; k < 16; ++k) {
      row[h][k] = operand<kMnA>(a, thread / 32 * 16 + h * 8 + lane / 4, k);
    }
  }
  for (uint32_t nb{0}; nb < 16; ++nb) {
    for (uint32_t c{0}; c < 2; ++c) {
      float col[16];
      for (uint32_t k{0}; k < 16; ++k) col[k] = operand<kMnB>(b, nb * 8 + lane % 4 * 2 + c, k);
      for (uint32_t h{0}; h < 2; ++h) {
        float& sum{d[nb * 4 + h * 2 + c]};
        float s{add ? sum : 0.0F};
        for (uint32_t k{0}; k < 16; ++k) s += row[h][k] * col[k];
        sum = s;
      }
    }
  }
}

}  // namespace monomoe::ptx
