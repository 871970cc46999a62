// Stands in for src/arch/cuda/ptx/math.cuh.
#pragma once

#include <cmath>

#include "base/dtype.h"
#include "emulator/cuda.h"

namespace monomoe::ptx {

inline float exp2_approx(float v) { return std::exp2(v); }
inline float rcp_approx(float v) { return 1.0F / v; }
inline float min_nan(float a, float b) {
  return std::isnan(a) || std::isnan(b) ? NAN : std::fmin(a, b);
}
inline float max_nan(float a, float b) {
  return std::isnan(a) || std::isnan(b) ? NAN : std::fmax(a, b);
}
inline uint32_t pack_bf16(float low, float high) {
  return uint32_t{to_bf16(low).bits} | uint32_t{to_bf16(high).bits} << 16U;
}
inline int32_t opaque_thread() { return static_cast<int32_t>(threadIdx.x); }

}  // namespace monomoe::ptx
