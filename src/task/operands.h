// The caller's tensors as one rank sees them: pointers and strides, whatever the backend.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/hd.h"
#include "plan/workspace.h"
#include "task/activation.h"
#include "task/wgrad.h"

namespace monomoe {

/// Rows of bf16, `row` elements apart; several matrices `matrix` elements apart.
struct Rows {
  const Bf16* data{nullptr};
  int64_t row{0};
  int64_t matrix{0};

  MONOMOE_HD const Bf16* at(int64_t r) const { return data + r * row; }
  MONOMOE_HD Rows of(int64_t m) const { return {data + m * matrix, row, matrix}; }
};

/// A weight gradient to be written: bf16 or fp32, or absent.
struct GradOut {
  void* data{nullptr};
  int64_t row{0};     // elements
  int64_t matrix{0};  // elements
};

/// fp32 [T, K] with any strides.
struct Scalars {
  float* data{nullptr};
  int64_t row{0};
  int64_t col{0};

  MONOMOE_HD float& at(int64_t r, int64_t c) const { return data[r * row + c * col]; }
};

struct WeightRows {
  Rows gate, up, down;                       // of the rank's experts
  Rows shared_gate, shared_up, shared_down;  // data null without a shared expert
  const Bf16* shared_score{nullptr};         // [H]
};

struct WeightGrads {
  GradOut gate, up, down;
  GradOut shared_gate, shared_up, shared_down, shared_score;
  GradStore store{GradStore::kBf16};
};

/// Inputs and outputs of one pass on one rank. Outputs of the other pass are null.
struct Operands {
  Clamp clamp{};
  Rows x, dy;            // this rank's tokens
  Scalars topk_weights;  // read only
  WeightRows weights;
  Bf16* y{nullptr};  // forward: y; backward: dx, may be null
  int64_t y_row{0};
  Scalars dtopk_weights;  // backward, data may be null
  WeightGrads grads;
  std::byte* saved{nullptr};  // written by forward, read by backward
  SavedLayout saved_layout;

  template <class T>
  MONOMOE_HD T* saved_region(const Extent& e) const {
    return reinterpret_cast<T*>(saved + e.offset);
  }
};

}  // namespace monomoe
