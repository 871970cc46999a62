// Storage types. bf16 is kept as its 16 bits; arithmetic is always fp32.
#pragma once

#include <bit>
#include <cstdint>

namespace monomoe {

/// The upper half of an fp32.
struct Bf16 {
  uint16_t bits;
};

inline float to_float(Bf16 v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16U); }

/// Round to nearest, ties to even; NaN stays NaN (quiet, sign kept).
inline Bf16 to_bf16(float v) {
  const auto u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7FFFFFFFU) > 0x7F800000U) {
    return {static_cast<uint16_t>((u >> 16U) | 0x0040U)};
  }
  return {static_cast<uint16_t>((u + 0x7FFFU + ((u >> 16U) & 1U)) >> 16U)};
}

inline float round_bf16(float v) { return to_float(to_bf16(v)); }

}  // namespace monomoe
