// What stands in a CUtensorMap of the emulated machine.
#pragma once

#include <cstdint>

namespace emulator {

struct TensorMap {
  const uint8_t* data;
  int64_t cols, rows, depth;
  int64_t row_bytes, matrix_bytes;
  int32_t box_rows;
};

}  // namespace emulator
