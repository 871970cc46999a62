// What CUDA C++ adds to C++, for kernels on the emulated machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <vector>

#include "emulator/machine.h"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)

#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::Index{emulator::block().index})
#define gridDim (emulator::Index{emulator::block().blocks})
#define blockDim (emulator::Index{emulator::block().threads})

struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline float __uint_as_float(uint32_t v) {
  float f;
  std::memcpy(&f, &v, 4);
  return f;
}
inline float __int_as_float(int32_t v) { return __uint_as_float(static_cast<uint32_t>(v)); }
inline float __expf(float v) { return std::exp(v); }

template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcg(T* p, const T& v) {
  *p = v;
}
template <class T>
void __stcs(T* p, const T& v) {
  *p = v;
}

inline void __threadfence() {}
inline void __threadfence_system() {}
inline void __nanosleep(uint32_t) { emulator::yield(); }
inline int __popc(uint32_t v) { return __builtin_popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }

template <class T>
T atomicAdd(T* p, T v) {
  const T old{*p};
  *p = static_cast<T>(old + v);
  emulator::yield();
  return old;
}
template <class T>
T atomicExch(T* p, T v) {
  const T old{*p};
  *p = v;
  return old;
}
template <class T>
T atomicCAS(T* p, T expected, T v) {
  const T old{*p};
  if (old == expected) *p = v;
  return old;
}
template <class T>
T atomicCAS_system(T* p, T expected, T v) {
  return atomicCAS(p, expected, v);
}

inline void __syncthreads() { emulator::meet(0, emulator::block().threads, false); }
inline int __syncthreads_and(int v) {
  static std::map<const emulator::Block*, int> all;
  int& result{all[&emulator::block()]};
  __syncthreads();
  result = 1;
  __syncthreads();
  if (v == 0) result = 0;
  __syncthreads();
  return result;
}

namespace emulator {
template <class T>
uint64_t to_word(T v) {
  static_assert(sizeof(T) <= 8);
  uint64_t w{0};
  std::memcpy(&w, &v, sizeof(T));
  return w;
}
template <class T>
T from_word(uint64_t w) {
  T v;
  std::memcpy(&v, &w, sizeof(T));
  return v;
}
inline uint32_t lane() { return threadIdx.x % 32; }
template <class T>
T from_lane(T v, uint32_t of) {
  return from_word<T>(exchange(to_word(v))[of % 32]);
}
}  // namespace emulator

inline void __syncwarp() { emulator::exchange(0); }
template <class T>
T __shfl_sync(uint32_t, T v, int of) {
  return emulator::from_lane(v, static_cast<uint32_t>(of));
}
template <class T>
T __shfl_xor_sync(uint32_t, T v, int mask) {
  return emulator::from_lane(v, emulator::lane() ^ static_cast<uint32_t>(mask));
}
template <class T>
T __shfl_up_sync(uint32_t, T v, unsigned delta) {
  const uint32_t lane{emulator::lane()};
  return emulator::from_lane(v, lane >= delta ? lane - delta : lane);
}
inline uint32_t __ballot_sync(uint32_t, bool v) {
  const std::vector<uint64_t>& all{emulator::exchange(v ? 1 : 0)};
  uint32_t mask{0};
  for (uint32_t i{0}; i < 32; ++i) mask |= static_cast<uint32_t>(all[i]) << i;
  return mask;
}
inline int __any_sync(uint32_t m, bool v) { return __ballot_sync(m, v) != 0 ? 1 : 0; }
inline int __all_sync(uint32_t m, bool v) { return __ballot_sync(m, v) == 0xFFFFFFFFU ? 1 : 0; }
template <class T>
uint32_t __match_any_sync(uint32_t, T v) {
  const std::vector<uint64_t>& all{emulator::exchange(emulator::to_word(v))};
  uint32_t mask{0};
  for (uint32_t i{0}; i < 32; ++i) mask |= (all[i] == emulator::to_word(v) ? 1U : 0U) << i;
  return mask;
}
