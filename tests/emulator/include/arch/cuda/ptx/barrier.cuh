// Stands in for src/arch/cuda/ptx/barrier.cuh. An mbarrier's word: phase in bit 0, arrivals of a
// phase in 1 .. 15, arrivals still missing in 16 .. 31, bytes still missing in 32 .. 63.
//
// A shared address is an offset in the block; in the window of a cluster its rank stands above.
#pragma once

#include "emulator/cuda.h"

namespace monomoe::ptx {

constexpr uint32_t kRankShift{28};

inline uint32_t smem_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const uint8_t*>(p) - emulator::block().shared);
}
inline uint8_t* in_cluster(uint32_t at) {
  return emulator::block().cluster[at >> kRankShift]->shared + (at & ((1U << kRankShift) - 1));
}

struct BarrierWord {
  uint32_t phase, arrivals, missing;
  int32_t bytes;

  explicit BarrierWord(uint64_t w)
      : phase{static_cast<uint32_t>(w & 1U)},
        arrivals{static_cast<uint32_t>(w >> 1U) & 0x7FFFU},
        missing{static_cast<uint32_t>(w >> 16U) & 0xFFFFU},
        bytes{static_cast<int32_t>(w >> 32U)} {}
  /// Ends the phase if nothing is missing.
  uint64_t settle() {
    if (missing == 0 && bytes == 0) {
      phase ^= 1U;
      missing = arrivals;
    }
    return uint64_t{phase} | uint64_t{arrivals} << 1U | uint64_t{missing} << 16U |
           uint64_t{static_cast<uint32_t>(bytes)} << 32U;
  }
};

inline void barrier_init(uint64_t* b, uint32_t arrivals) {
  *b = uint64_t{arrivals} << 1U | uint64_t{arrivals} << 16U;
}
inline void fence_barrier_init() {}
inline void barrier_add(uint64_t* b, int32_t bytes, uint32_t arrivals) {
  BarrierWord w{*b};
  if (w.missing < arrivals) throw std::runtime_error{"emulator: an arrival too many at a barrier"};
  w.missing -= arrivals;
  w.bytes += bytes;
  *b = w.settle();
}
inline void barrier_arrive(uint64_t* b) { barrier_add(b, 0, 1); }
inline void barrier_expect(uint64_t* b, uint32_t bytes) {
  barrier_add(b, static_cast<int32_t>(bytes), 1);
}
inline void barrier_wait(uint64_t* b, uint32_t parity) {
  emulator::wait_until("an mbarrier", [b, parity] { return (*b & 1U) != parity; });
}
inline bool barrier_test(uint64_t* b, uint32_t parity) { return (*b & 1U) != parity; }
inline void barrier_wait_cluster(uint64_t* b, uint32_t parity) { barrier_wait(b, parity); }
inline uint32_t cluster_address(const void* p, uint32_t rank) {
  return smem_address(p) | rank << kRankShift;
}
inline void barrier_arrive_remote(uint32_t at) {
  barrier_arrive(reinterpret_cast<uint64_t*>(in_cluster(at)));
}
inline void barrier_arrive_cluster(uint32_t at) { barrier_arrive_remote(at); }
inline void store_cluster(uint32_t at, uint32_t v) { std::memcpy(in_cluster(at), &v, 4); }
inline void store_cluster_16(uint32_t at, const uint4& v) {
  if (at % 16 != 0) throw std::runtime_error{"emulator: a store that is not aligned"};
  std::memcpy(in_cluster(at), &v, 16);
}
inline void barrier_expect_remote(uint32_t at, uint32_t bytes) {
  barrier_expect(reinterpret_cast<uint64_t*>(in_cluster(at)), bytes);
}
/// Happens later, as copies do.
inline void store_async_16(uint32_t at, const uint4& v, uint32_t b) {
  if (at % 16 != 0) throw std::runtime_error{"emulator: a store that is not aligned"};
  if (at >> kRankShift != b >> kRankShift) {
    throw std::runtime_error{"emulator: an asynchronous store and its barrier in two blocks"};
  }
  emulator::later([to = in_cluster(at), v, barrier = reinterpret_cast<uint64_t*>(in_cluster(b))] {
    std::memcpy(to, &v, 16);
    barrier_add(barrier, -16, 0);
  });
}
inline uint32_t load_cluster(uint32_t at) {
  uint32_t v;
  std::memcpy(&v, in_cluster(at), 4);
  return v;
}
inline uint32_t cluster_rank() { return emulator::block().cluster_rank; }
inline void cluster_sync() {
  const emulator::Block& b{emulator::block()};
  emulator::meet(0, static_cast<uint32_t>(b.cluster.size()) * b.threads, true);
}
inline void named_sync(int32_t id, int32_t threads) {
  emulator::meet(id, static_cast<uint32_t>(threads), false);
}
inline bool elect_one() { return threadIdx.x % 32 == 0; }
template <int kRegisters>
void give_registers() {}
template <int kRegisters>
void take_registers() {}

}  // namespace monomoe::ptx
