// The rounding points: the contract between backends. docs/numerics.md is its prose.
//
// Operands of every GEMM are bf16; products are summed in fp32 with k ascending, from zero.
//   gate, up        bf16(sum over H)
//   a               bf16(silu(gate') * up')         fp32 inside, from the rounded gate and up
//   slot row of y   bf16(sum over I of a * Wd)
//   y               bf16(sum over slots, ascending, of w * slot [+ sigma * shared row])
//   dA'             fp32 sum over H of dy * Wd; never rounded
//   dgate, dup      bf16(w * dA' * derivative)
//   w * a           bf16(w * a), a as in forward
//   router gradient fp32: per column tile sum of dA' * a, tiles added ascending
//   slot row of dx  bf16(sum over I of dgate * Wg, then over I of dup * Wu)
//   dx              bf16(sum over slots, ascending [+ shared row] [+ dscore * w_score])
//   weight gradient fp32 sum over the expert's rows in canonical order; rounded once or added once
//   score           fp32 sum over H of x * w_score; sigma = 1 / (1 + exp(-score))
//   dscore          fp32 sigma * (1 - sigma) * sum of dA' * a of the shared expert
// The shared expert is an expert whose rows are the rank's tokens and whose weight w is sigma (or
// 1).
#pragma once

#include <cmath>

namespace monomoe {

/// Plain sigmoid; GPUs have their own with the same error bound (2 ulp of fp32).
struct HostSigmoid {
  float operator()(float v) const { return 1.0F / (1.0F + std::exp(-v)); }
};

}  // namespace monomoe
