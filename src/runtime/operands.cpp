#include "runtime/operands.h"

namespace monomoe {
namespace {

/// From row (of a matrix) or matrix (of a stack) `first` on.
Rows rows_of(const Tensor& t, int64_t first) {
  if (!t.given() || t.data == nullptr) return {};
  const bool stack{t.ndim == 3};
  return {static_cast<const Bf16*>(t.data) + first * t.stride[0], t.stride[stack ? 1 : 0],
          stack ? t.stride[0] : 0};
}

GradOut grad_of(const Tensor& t, int64_t first_matrix) {
  if (!t.given()) return {};
  if (t.ndim == 1) return {t.data, 0, 0};
  if (t.ndim == 2) return {t.data, t.stride[0], 0};
  const int64_t item{t.dtype == DType::kF32 ? 4 : 2};
  return {static_cast<std::byte*>(t.data) + first_matrix * t.stride[0] * item, t.stride[1],
          t.stride[0]};
}

Scalars scalars_of(const Tensor& t, int64_t first_row) {
  if (!t.given()) return {};
  return {static_cast<float*>(t.data) + first_row * t.stride[0], t.stride[0], t.stride[1]};
}

GradStore store_of(const Call& c) {
  if (c.accumulate) return GradStore::kAddF32;
  return c.config.weight_grad == WeightGrad::kF32 ? GradStore::kF32 : GradStore::kBf16;
}

}  // namespace

Operands bind_operands(const Call& c, const RankPlan& p) {
  Operands out;
  const int64_t token{p.first_token};
  const int64_t expert{p.plan.dims.first_expert()};
  const WeightTensors& w{c.weights};
  out.clamp = c.clamp;
  out.x = rows_of(c.x, token);
  out.dy = rows_of(c.dy, token);
  out.topk_weights = scalars_of(c.topk_weights, token);
  out.weights = {rows_of(w.gate, expert),
                 rows_of(w.up, expert),
                 rows_of(w.down, expert),
                 rows_of(w.shared_gate, 0),
                 rows_of(w.shared_up, 0),
                 rows_of(w.shared_down, 0),
                 static_cast<const Bf16*>(c.score ? w.shared_score.data : nullptr)};
  if (c.y.given()) {
    out.y = static_cast<Bf16*>(c.y.data) + token * c.y.stride[0];
    out.y_row = c.y.stride[0];
  }
  out.dtopk_weights = scalars_of(c.dtopk_weights, token);
  out.grads = {grad_of(c.grads.gate, expert),    grad_of(c.grads.up, expert),
               grad_of(c.grads.down, expert),    grad_of(c.grads.shared_gate, 0),
               grad_of(c.grads.shared_up, 0),    grad_of(c.grads.shared_down, 0),
               grad_of(c.grads.shared_score, 0), store_of(c)};
  out.saved = static_cast<std::byte*>(c.saved.data) + p.saved_offset;
  out.saved_layout = p.saved;
  return out;
}

}  // namespace monomoe
