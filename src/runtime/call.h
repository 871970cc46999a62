// A call after validation: what forward and backward have in common.
#pragma once

#include <cstdint>
#include <vector>

#include "monomoe/layer.h"
#include "task/activation.h"

namespace monomoe {

struct Call {
  bool backward{false};
  int64_t tokens{0};  // of all ranks
  int64_t hidden{0};
  int64_t inter{0};
  int64_t shared{0};
  bool score{false};
  Tensor x, dy, topk_weights;
  WeightTensors weights;
  Schedule schedule;
  Config config;
  Clamp clamp{};
  Tensor y;  // forward: y; backward: dx, may be absent
  Tensor saved;
  Tensor dtopk_weights;  // may be absent
  WeightTensors grads;   // each may be absent
  bool accumulate{false};
  void* stream{nullptr};
};

}  // namespace monomoe
