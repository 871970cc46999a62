// wgrad_gate_up: dWg = dgate^T * x, dWu = dup^T * x  ([2, I, H], gate tiles first)
// wgrad_down:    dWd = dy^T * (w * a)                ([H, I])
//
// Operands  rows of the chunk, in canonical order, both read along their columns
// Tile      rows x cols of the gradient, k = the chunk's rows in blocks of whole row tiles, each up
//           to its padded end (the padding is zero)
// Epilogue  first chunk: from zero; later chunks: from the spilled fp32 tile; not the last chunk:
//           spilled; last chunk: rounded once to bf16, stored as fp32, or added once to fp32
// Signals   kWgradDone[chunk begin]; kSpill[tile] for experts with more than one chunk
#pragma once

#include <cstdint>

namespace monomoe {

/// What happens to a finished fp32 gradient.
enum class GradStore : uint8_t { kBf16, kF32, kAddF32 };

}  // namespace monomoe
