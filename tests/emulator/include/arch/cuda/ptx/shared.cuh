// Stands in for src/arch/cuda/ptx/shared.cuh.
#pragma once

#include "arch/cuda/ptx/barrier.cuh"
#include "emulator/cuda.h"

namespace monomoe::ptx {

inline uint32_t uniform(uint32_t v) {
  for (const uint64_t other : emulator::exchange(v)) {
    if (other != v) throw std::runtime_error{"emulator: lanes disagree on a uniform value"};
  }
  return v;
}

inline uint8_t* dynamic_shared() { return emulator::block().shared; }

inline int32_t load_volatile(const int32_t& word) {
  emulator::yield();
  return *static_cast<const volatile int32_t*>(&word);
}

inline uint4 load_shared_16(uint32_t at) {
  uint4 v;
  std::memcpy(&v, emulator::block().shared + at, 16);
  return v;
}

/// Lane i of the warp gives the address of row i % 8 of matrix i / 8; thread t of a matrix holds
/// columns 2 (t % 4) and the next of row t / 4.
inline void store_matrices(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const std::vector<uint64_t> rows{emulator::exchange(at)};
  const uint32_t lane{threadIdx.x % 32};
  const uint32_t values[4]{a, b, c, d};
  for (uint32_t m{0}; m < 4; ++m) {
    std::memcpy(emulator::block().shared + rows[m * 8 + lane / 4] + lane % 4 * 4, &values[m], 4);
  }
  emulator::exchange(0);
}

}  // namespace monomoe::ptx
