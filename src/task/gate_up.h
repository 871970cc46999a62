// gate_up: [gate | up] = x * [Wg | Wu]^T, then the activation.
//
// Operands  x_row [tile rows, H] bf16 (ring or saved) | Wg, Wu [I, H] bf16 of the expert
// Tile      rows x (cols/2 gate columns and the same cols/2 up columns), k = H
// Epilogue  gate, up -> bf16, stored at preact_index (saved, or preact ring when computed again);
//           forward: a = bf16(swiglu) -> act ring [row, I]; rows from the expert's end to the next
//           multiple of `align` are written as zero
// Signals   kGuDone[row tile]
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "base/int_math.h"
#include "plan/workspace.h"

namespace monomoe {

/// Element index of a saved pre-activation; `which` 0 = gate, 1 = up.
///
/// Order of the m64nNk16 accumulator fragments: blocks of 64 rows x 64 columns, gate then up, and
/// in a block [4][128 threads][8]: thread t of a warpgroup owns what its accumulators hold, as four
/// vectors of 16 bytes. The thread of dgrad_down that needs a value is the one that stored it.
MONOMOE_HD constexpr int64_t preact_index(int64_t row, int32_t col, int32_t which, int32_t inter) {
  const int32_t r{static_cast<int32_t>(row % kPreactBlock)};
  const int32_t c{col % kPreactBlock};
  const int32_t thread{(r / 16) * 32 + (r % 8) * 4 + (c % 8) / 2};
  const int32_t pair{(c / 8) * 2 + (r % 16) / 8};  // accumulator pair of the thread: 0 .. 15
  const int64_t block{
      ((row / kPreactBlock) * ceil_div(inter, kPreactBlock) + col / kPreactBlock) * 2 + which};
  return block * (kPreactBlock * kPreactBlock) + ((pair / 4) * 128 + thread) * 8 + (pair % 4) * 2 +
         c % 2;
}

}  // namespace monomoe
