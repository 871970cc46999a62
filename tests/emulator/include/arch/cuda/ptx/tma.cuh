// Stands in for src/arch/cuda/ptx/tma.cuh. Copies happen later, in any order.
#pragma once

#include "arch/cuda/ptx/barrier.cuh"
#include "emulator/tensor_map.h"

namespace monomoe::ptx {

/// A box with 128-byte swizzle at `to` (of block `b`'s shared memory), zeros outside of the tensor.
inline void fill_box(uint8_t* shared, uint32_t to, const emulator::TensorMap& m, int32_t x,
                     int32_t y, int32_t z) {
  for (int32_t r{0}; r < m.box_rows; ++r) {
    for (int32_t c{0}; c < 64; ++c) {
      uint16_t v{0};
      if (x + c < m.cols && y + r < m.rows && z < m.depth && y + r >= 0) {
        std::memcpy(&v, m.data + z * m.matrix_bytes + (y + r) * m.row_bytes + (x + c) * 2, 2);
      }
      const uint32_t at{to + static_cast<uint32_t>(r * 128 + c * 2)};
      std::memcpy(shared + (at ^ (((at >> 7U) & 7U) << 4U)), &v, 2);
    }
  }
}

inline void load_box_into(emulator::Block* b, void* dst, const void* map, uint64_t* barrier,
                          int32_t x, int32_t y, int32_t z) {
  emulator::TensorMap m{};
  std::memcpy(&m, map, sizeof(m));
  const uint32_t to{smem_address(dst)};
  const uint32_t at{smem_address(barrier)};
  emulator::later([=] {
    fill_box(b->shared, to, m, x, y, z);
    barrier_add(reinterpret_cast<uint64_t*>(b->shared + at), -m.box_rows * 128, 0);
  });
}
inline void load_box(void* dst, const void* map, uint64_t* b, int32_t x, int32_t y, int32_t z) {
  load_box_into(&emulator::block(), dst, map, b, x, y, z);
}
inline void load_box_both(void* dst, const void* map, uint64_t* b, int32_t x, int32_t y,
                          int32_t z) {
  for (emulator::Block* each : emulator::block().cluster) {
    load_box_into(each, dst, map, b, x, y, z);
  }
}
inline void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* b) {
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(src) % 16 != 0 ||
      smem_address(dst) % 16 != 0) {
    throw std::runtime_error{"emulator: a bulk copy that is not aligned"};
  }
  emulator::later([=] {
    std::memcpy(dst, src, bytes);
    barrier_add(b, -static_cast<int32_t>(bytes), 0);
  });
}
inline void bulk_store(void* dst, const void* src, uint32_t bytes) {
  int32_t* const pending{&emulator::pending_stores()};
  ++*pending;
  emulator::later([=] {
    std::memcpy(dst, src, bytes);
    --*pending;
  });
}
/// Stores are done in any order here, so all of them have to be.
template <int kPending>
void bulk_wait_read() {
  const int32_t* const pending{&emulator::pending_stores()};
  emulator::wait_until("its bulk stores", [pending] { return *pending == 0; });
}
inline void bulk_wait_all() { bulk_wait_read<0>(); }

}  // namespace monomoe::ptx
