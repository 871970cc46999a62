// Single instructions of arithmetic, and the thread's number.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace monomoe::ptx {

/// 2^v and 1 / v, within 2 ulp.
__device__ __forceinline__ float exp2_approx(float v) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
__device__ __forceinline__ float rcp_approx(float v) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

/// NaN if one of both is.
__device__ __forceinline__ float min_nan(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

/// Two values, rounded to bf16; `low` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 v{__floats2bfloat162_rn(low, high)};
  return reinterpret_cast<const uint32_t&>(v);
}

/// threadIdx.x that the compiler can't see through: it finds no reason to keep what follows from
/// it.
__device__ __forceinline__ int32_t opaque_thread() {
  int32_t id;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(id));
  return id;
}

}  // namespace monomoe::ptx
