// bf16 pairs and vectors of eight.
#pragma once

#include <cstdint>

#include "arch/cuda/ptx/math.cuh"

namespace monomoe::cuda {

__device__ inline float low_half(uint32_t pair) { return __uint_as_float(pair << 16U); }
__device__ inline float high_half(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000U); }
struct Eight {
  float v[8];
};

__device__ inline void add_scaled(Eight* acc, float scale, const uint4& row) {
  const uint32_t words[4]{row.x, row.y, row.z, row.w};
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    acc->v[2 * i] = fmaf(scale, low_half(words[i]), acc->v[2 * i]);
    acc->v[2 * i + 1] = fmaf(scale, high_half(words[i]), acc->v[2 * i + 1]);
  }
}

__device__ inline uint4 pack_eight(const Eight& e) {
  return make_uint4(ptx::pack_bf16(e.v[0], e.v[1]), ptx::pack_bf16(e.v[2], e.v[3]),
                    ptx::pack_bf16(e.v[4], e.v[5]), ptx::pack_bf16(e.v[6], e.v[7]));
}

__device__ inline float sigmoid(float v) { return 1.0F / (1.0F + __expf(-v)); }

}  // namespace monomoe::cuda
