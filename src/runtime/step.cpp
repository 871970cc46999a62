// The sequence of one call: lock, validate, choose a backend, run, report.
#include <cmath>
#include <limits>
#include <mutex>
#include <new>
#include <stdexcept>

#include "base/dtype.h"
#include "monomoe/layer.h"
#include "runtime/backend.h"
#include "runtime/faults.h"
#include "runtime/planner.h"
#include "runtime/sm90_backend.h"
#include "runtime/validate.h"

namespace monomoe {
namespace {

/// Nobody may take the result of a failed call for a result.
void fill_nan(const Tensor& t) {
  if (!t.given() || t.numel() == 0) return;
  std::array<int64_t, Tensor::kMaxDims> at{};
  for (int64_t i{0}; i < t.numel(); ++i) {
    int64_t offset{0};
    for (int32_t d{0}; d < t.ndim; ++d) {
      offset += at[static_cast<size_t>(d)] * t.stride[static_cast<size_t>(d)];
    }
    if (t.dtype == DType::kF32) {
      static_cast<float*>(t.data)[offset] = std::numeric_limits<float>::quiet_NaN();
    } else {
      static_cast<Bf16*>(t.data)[offset] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    }
    for (int32_t d{t.ndim - 1}; d >= 0; --d) {
      const auto i_d = static_cast<size_t>(d);
      if (++at[i_d] < t.shape[i_d]) break;
      at[i_d] = 0;
    }
  }
}

constexpr const char* kClose{"; the outputs hold NaN: close the group"};

void run_call(Group::Impl& g, const Call& c) {
  Backend& backend{backend_for(c.x.device)};
  const std::vector<RankPlan> plans{make_plans(g, c, backend.traits(g, c.x.device))};
  for (const RankPlan& p : plans) check_tickets(most_tickets(p));
  check_saved(c.saved, plans.back().saved_offset + plans.back().saved.bytes, c.x.device);
  const uint32_t epoch{g.epoch};
  std::optional<std::string> failure;
  try {
    if (const auto fault = backend.run(g, c, plans)) failure = describe(*fault, g.ranks);
  } catch (const std::bad_alloc&) {
    if (g.epoch == epoch) refuse_memory(plans);  // nothing was begun
    failure = std::string{"group: memory wanted, none left in the middle of a call"} + kClose;
  } catch (const std::logic_error& e) {
    failure = std::string{"group: "} + e.what() + kClose;
  }
  if (!failure) return;
  for (const Tensor* t :
       {&c.y, &c.dtopk_weights, &c.grads.gate, &c.grads.up, &c.grads.down, &c.grads.shared_gate,
        &c.grads.shared_up, &c.grads.shared_down, &c.grads.shared_score}) {
    fill_nan(*t);
  }
  g.fault = failure;
  throw Error{ErrorCode::kFault, *g.fault};
}

/// A call without the memory to begin with is refused like any other that can't be served.
template <class F>
void with_memory(const F& call) {
  try {
    call();
  } catch (const std::bad_alloc&) {
    refuse_memory({});
  }
}

}  // namespace

std::vector<int64_t> split_tokens(int64_t tokens, int64_t ranks) {
  check_group(ranks, 1.0);
  check_tokens(tokens);
  std::vector<int64_t> out;
  for (int64_t r{0}; r < ranks; ++r) {
    out.push_back(tokens / ranks + (r < tokens % ranks ? 1 : 0));
  }
  return out;
}

int64_t schedule_words(const Group& group, int64_t tokens, int64_t experts, int64_t top_k) {
  // The widths don't matter here.
  check_shape({tokens, 8, 8, experts, top_k, 0, group.ranks()}, group.ranks());
  return schedule_words(group.impl(), tokens, experts, top_k);
}

void schedule(Group& group, const Tensor& topk_ids, const Schedule& out, void* stream) {
  Group::Impl& g{group.impl()};
  const std::lock_guard lock{g.mutex};
  with_memory([&] {
    g.require_usable();
    check_schedule(g, topk_ids, out);
    backend_for(topk_ids.device).schedule(g, topk_ids, out, stream);
  });
}

int64_t saved_bytes(const Group& group, const Shape& shape, const Config& config) {
  const Group::Impl& g{group.impl()};
  check_shape(shape, g.ranks);
  check_config(config);
  Dims d{};
  d.ranks = g.ranks;
  d.hidden = static_cast<int32_t>(shape.hidden);
  d.inter = static_cast<int32_t>(shape.intermediate);
  d.experts = static_cast<int32_t>(shape.experts);
  d.top_k = static_cast<int32_t>(shape.top_k);
  d.shared = static_cast<int32_t>(shape.shared);
  d.score = d.shared > 0;
  d.tokens = static_cast<int32_t>(shape.tokens);
  const Knobs k{choose_knobs(config, PlanTraits{}, g.tile, d, shape.tokens, false)};
  // Any split of the tokens: every rank may round its tokens up once more.
  int64_t bytes{saved_layout(d, g.tile, k).bytes};
  for (int32_t r{1}; r < g.ranks; ++r) {
    d.tokens = 1;
    bytes += saved_layout(d, g.tile, k).bytes;
  }
  return bytes;
}

void forward(Group& group, const ForwardArgs& args) {
  Group::Impl& g{group.impl()};
  const std::lock_guard lock{g.mutex};
  with_memory([&] {
    g.require_usable();
    run_call(g, check_forward(g, args));
  });
}

void backward(Group& group, const BackwardArgs& args) {
  Group::Impl& g{group.impl()};
  const std::lock_guard lock{g.mutex};
  with_memory([&] {
    g.require_usable();
    run_call(g, check_backward(g, args));
  });
}

std::vector<std::pair<std::string, std::string>> environment() { return sm90_environment(); }

std::vector<std::string> backends() {
  std::vector<std::string> names;
  for (const Backend* b : available_backends()) names.emplace_back(b->name());
  return names;
}

}  // namespace monomoe
