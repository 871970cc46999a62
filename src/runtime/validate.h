// Every check of what the caller hands us. All user-facing messages live in validate.cpp.
#pragma once

#include <cstdint>
#include <string>

#include "monomoe/error.h"
#include "monomoe/layer.h"
#include "runtime/call.h"
#include "runtime/group_impl.h"
#include "runtime/planner.h"

namespace monomoe {

[[noreturn]] void refuse_closed_group();

void check_group(int64_t ranks, double timeout_s);
void check_config(const Config& config);

/// A number of tokens of all ranks.
void check_tokens(int64_t tokens);

/// Legal sizes of a layer; `shape.ranks` must be `ranks`.
void check_shape(const Shape& shape, int64_t ranks);

/// Everything about a schedule call, id values included (they are host memory).
void check_schedule(const Group::Impl& group, const Tensor& topk_ids, const Schedule& out);

/// Validates and gathers. `words`: the needed length of the tables tensor.
Call check_forward(const Group::Impl& group, const ForwardArgs& args);
Call check_backward(const Group::Impl& group, const BackwardArgs& args);

void check_view(const PlanView& view, int64_t ranks);

/// The workspace of a call did not fit into memory.
[[noreturn]] void refuse_memory(const std::vector<RankPlan>& plans);

/// The most tasks that a rank of the call may have.
void check_tickets(int64_t tickets);

/// The saved tensor against the bytes that the plan needs.
void check_saved(const Tensor& saved, int64_t bytes, const Device& device);

}  // namespace monomoe
