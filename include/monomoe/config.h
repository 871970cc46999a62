// Options of one forward / backward pair. Every option leaves the bits of the results unchanged,
// except `weight_grad`, which chooses the type they are rounded to.
#pragma once

#include <cstdint>
#include <optional>

namespace monomoe {

/// What forward keeps for backward.
enum class Save : uint8_t {
  kAll,     // dispatched x and pre-activations
  kPreact,  // pre-activations; x is pulled again in backward
  kNone,    // nothing; gate_up is computed again in backward
};

/// Type of written weight gradients: the fp32 sum rounded once to bf16, or the fp32 sum.
enum class WeightGrad : uint8_t { kBf16, kF32 };

/// An absent value means: chosen by policy (see `explain`). On GPUs workers are thread blocks and
/// work in pairs: `workers` is rounded down to pairs, at least one; movers are rounded up to pairs.
struct Config {
  std::optional<int64_t> fwd_comm_sms;    // workers that only move rows in forward; >= 0
  std::optional<int64_t> bwd_comm_sms;    // the same in backward; >= 0
  std::optional<int64_t> workers;         // persistent workers a rank (CPU: threads a call); >= 1
  std::optional<int64_t> minibatch_rows;  // rows of an expert ordered as one piece; >= 128
  std::optional<int64_t> ring_rows;       // rows of the token ring; >= 256, rounded up to 128
  std::optional<int64_t> save_rows;       // rows of row space kept for backward; >= 0
  Save save{Save::kPreact};
  WeightGrad weight_grad{WeightGrad::kBf16};
};

}  // namespace monomoe
