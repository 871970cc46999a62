// Stands in for src/arch/cuda/ptx/memory.cuh.
#pragma once

#include <chrono>

#include "emulator/cuda.h"

namespace monomoe::ptx {

template <class T>
T poll_word(const T* p) {
  emulator::yield();
  return *p;
}
inline int32_t load_acquire_sys(const int32_t* p) { return poll_word(p); }
inline int32_t load_acquire_gpu(const int32_t* p) { return poll_word(p); }
inline int32_t load_relaxed_gpu(const int32_t* p) { return poll_word(p); }
inline int32_t load_relaxed_sys(const int32_t* p) { return poll_word(p); }
inline uint64_t load_relaxed_sys(const uint64_t* p) { return poll_word(p); }
inline void store_release_sys(int32_t* p, int32_t v) { *p = v; }
inline void store_relaxed_sys(int32_t* p, int32_t v) { *p = v; }
inline void store_relaxed_sys(uint64_t* p, uint64_t v) { *p = v; }
inline void add_release_gpu(int32_t* p, int32_t v) { *p += v; }
inline void add_release_sys(int32_t* p, int32_t v) { *p += v; }
inline int32_t fetch_add_acq_rel_gpu(int32_t* p, int32_t v) {
  const int32_t old{*p};
  *p += v;
  return old;
}
inline void fence_proxy_async() {}
inline void store_16(void* p, const uint4& v) { std::memcpy(p, &v, 16); }
inline void store_16_once(void* p, const uint4& v) { store_16(p, v); }
inline uint64_t global_nanoseconds() {
  emulator::yield();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}
inline uint64_t cycles() { return global_nanoseconds(); }

}  // namespace monomoe::ptx
