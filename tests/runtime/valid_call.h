// A schedule, forward and backward call that are legal in every respect, to be spoiled one argument
// at a time. All memory is guarded, so that a refused call can be shown to have written nothing.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "support/guarded.h"
#include "support/problem.h"

namespace monomoe::testing {

struct ValidCall {
  Problem problem{Case{.tokens = 6,
                       .hidden = 16,
                       .inter = 8,
                       .experts = 3,
                       .top_k = 2,
                       .shared = 24,
                       .score = true,
                       .skip = 0}};
  std::shared_ptr<Group> group{Group::local(2)};
  Guarded tables_memory, saved_memory, y_memory, dx_memory, dtopk_memory;
  std::vector<Guarded> grad_memory;

  // Arguments, to be spoiled.
  Tensor ids, x, topk_weights, y, saved, dy, dx, dtopk_weights;
  WeightTensors weights, grads;
  Schedule sched;
  Config config;
  std::optional<double> limit{};
  bool accumulate{false};

  ValidCall() {
    Case& c{problem.c};
    ids = contiguous(problem.ids.data(), DType::kI32, c.tokens, c.top_k);
    x = problem.x_tensor();
    dy = problem.dy_tensor();
    topk_weights = problem.weight_tensor();
    weights = problem.weights();
    config.weight_grad = WeightGrad::kF32;
    config.workers = 1;
    tables_memory = Guarded{DType::kI32, {schedule_words(*group, c.tokens, c.experts, c.top_k)}};
    sched = {tables_memory.tensor(), c.experts, c.top_k, split_tokens(c.tokens, 2)};
    saved_memory = Guarded{DType::kU8, {saved_bytes(*group, shape(), config)}};
    saved = saved_memory.tensor();
    y_memory = Guarded{DType::kBf16, {c.tokens, c.hidden}};
    y = y_memory.tensor();
    dx_memory = Guarded{DType::kBf16, {c.tokens, c.hidden}};
    dx = dx_memory.tensor();
    dtopk_memory = Guarded{DType::kF32, {c.tokens, c.top_k}};
    dtopk_weights = dtopk_memory.tensor();
    grad_memory.reserve(7);
    for (const Tensor* w : {&weights.gate, &weights.up, &weights.down, &weights.shared_gate,
                            &weights.shared_up, &weights.shared_down, &weights.shared_score}) {
      grad_memory.emplace_back(DType::kF32,
                               std::vector<int64_t>(w->shape.begin(), w->shape.begin() + w->ndim));
    }
    size_t i{0};
    for (Tensor* g : {&grads.gate, &grads.up, &grads.down, &grads.shared_gate, &grads.shared_up,
                      &grads.shared_down, &grads.shared_score}) {
      *g = grad_memory[i++].tensor();
    }
  }

  [[nodiscard]] Shape shape() const {
    const Case& c{problem.c};
    return {c.tokens, c.hidden, c.inter, c.experts, c.top_k, c.shared, 2};
  }
  void run_schedule() { schedule(*group, ids, sched); }
  void run_forward() {
    forward(*group, {x, topk_weights, weights, sched, config, limit, y, saved, nullptr});
  }
  void run_backward() {
    backward(*group, {dy, x, topk_weights, weights, sched, config, limit, saved, dx, dtopk_weights,
                      grads, accumulate, nullptr});
  }

  /// All memory that a call could write.
  std::vector<std::vector<std::byte>> bytes() {
    std::vector<std::vector<std::byte>> all;
    for (Guarded* g : {&tables_memory, &saved_memory, &y_memory, &dx_memory, &dtopk_memory}) {
      all.push_back(g->bytes());
    }
    for (Guarded& g : grad_memory) all.push_back(g.bytes());
    return all;
  }
};

}  // namespace monomoe::testing
