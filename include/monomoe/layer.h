// The three calls: schedule once, then forward and backward.
//
// All tensors are the caller's. bf16 tensors may have any strides as long as the last dimension is
// contiguous and rows are 16-byte aligned. A local group takes whole tensors: the tokens of all
// ranks in rank order, and the weights of all experts.
// Shapes: T tokens, H hidden, I intermediate, Is intermediate of the shared expert, E experts,
// K top-k. H, I and Is are multiples of 8; T may be 0; 1 <= K <= E.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "monomoe/config.h"
#include "monomoe/group.h"
#include "monomoe/tensor.h"

namespace monomoe {

/// The sizes of a layer, for `explain` and for sizing buffers.
struct Shape {
  int64_t tokens{0};        // of all ranks of this process
  int64_t hidden{0};        // H
  int64_t intermediate{0};  // I
  int64_t experts{0};       // E
  int64_t top_k{0};         // K
  int64_t shared{0};        // Is, 0 = no shared expert
  int64_t ranks{1};         // R
};

/// Weights, or their gradients. Shared tensors are absent without a shared expert.
struct WeightTensors {
  Tensor gate;          // [E, I, H] bf16
  Tensor up;            // [E, I, H] bf16
  Tensor down;          // [E, H, I] bf16
  Tensor shared_gate;   // [Is, H] bf16
  Tensor shared_up;     // [Is, H] bf16
  Tensor shared_down;   // [H, Is] bf16
  Tensor shared_score;  // [H] bf16; absent: the shared expert's output is not gated
};

/// What `schedule` made of the ids. `tables` is opaque and valid for every forward and backward of
/// any layer with the same group, T, E and K.
struct Schedule {
  Tensor tables;                         // [schedule_words(...)] int32, device of the ids
  int64_t experts{0};                    // E
  int64_t top_k{0};                      // K
  std::vector<int64_t> tokens_per_rank;  // T of each rank of the process
};

/// T tokens split contiguously and evenly: the first T mod R ranks hold one token more.
std::vector<int64_t> split_tokens(int64_t tokens, int64_t ranks);

/// Elements of `Schedule::tables` (int32). Errors: kValue for sizes that are not legal.
int64_t schedule_words(const Group& group, int64_t tokens, int64_t experts, int64_t top_k);

/// topk_ids [T, K] int32 or int64, any strides; -1 = not routed. Writes `out.tables`.
/// Errors: kValue (shape, ids < -1 or >= E, token counts that don't add up), kType, kState.
void schedule(Group& group, const Tensor& topk_ids, const Schedule& out, void* stream = nullptr);

/// Bytes of `ForwardArgs::saved`. `shape.ranks` must be the group's.
int64_t saved_bytes(const Group& group, const Shape& shape, const Config& config);

struct ForwardArgs {
  Tensor x;             // [T, H] bf16
  Tensor topk_weights;  // [T, K] fp32
  WeightTensors weights;
  Schedule schedule;
  Config config;
  std::optional<double> swiglu_limit;  // gate <= limit, |up| <= limit; > 0
  Tensor y;                            // out [T, H] bf16
  Tensor saved;                        // out [saved_bytes(...)] uint8; contiguous, 16-byte aligned
  void* stream{nullptr};               // cudaStream_t; ignored on the CPU
};

/// y = sum over slots k of topk_weights[t,k] * expert(topk_ids[t,k])(x[t]) + shared(x[t]).
/// Errors: kValue, kType, kState, kBackend before anything is written; kFault after a failed wait.
void forward(Group& group, const ForwardArgs& args);

struct BackwardArgs {
  Tensor dy;              // [T, H] bf16
  Tensor x;               // as in forward, unchanged
  Tensor topk_weights;    // as in forward, unchanged
  WeightTensors weights;  // as in forward, unchanged
  Schedule schedule;      // of forward
  Config config;          // of forward
  std::optional<double> swiglu_limit;
  Tensor saved;            // of forward; read only
  Tensor dx;               // out [T, H] bf16, or absent
  Tensor dtopk_weights;    // out [T, K] fp32, or absent
  WeightTensors grads;     // out, each tensor may be absent; bf16, or fp32 (`weight_grad`)
  bool accumulate{false};  // grads are fp32 and get one fp32 addition a value
  void* stream{nullptr};
};

/// All gradients. Experts without rows get +0, or are left untouched when accumulating.
/// Errors: as forward.
void backward(Group& group, const BackwardArgs& args);

/// Text: chosen tiles, workers, order, flops, bytes and memory regions of a shape.
std::string explain(const Shape& shape, const Config& config = {});

/// What `describe` looks at.
struct PlanView {
  bool backward{false};
  int64_t rank{0};
  int64_t tickets{20};         // of each line, from the first
  bool score{false};           // the shared expert's output is gated
  std::string backend{"cpu"};  // whose policy: "cpu" or "sm90"
};

/// JSON: one rank's plan of a call with these routes: knobs, rows of its experts, memory regions
/// and counters with their sizes, tasks of each kind, and the first tickets of each line in their
/// order, with what each waits for and raises. topk_ids [T, K] as for `schedule`, on the CPU; all
/// weight gradients are wanted. Errors: as schedule, and kValue for a rank or backend that there is
/// not.
std::string describe(const Tensor& topk_ids, const Shape& shape, const Config& config,
                     const PlanView& view);

/// Names of the backends this build contains and this machine can run, best first.
std::vector<std::string> backends();

/// What this build holds and this machine offers for GPUs, as names and values: kernels, versions,
/// devices and whether each can be used.
std::vector<std::pair<std::string, std::string>> environment();

}  // namespace monomoe
