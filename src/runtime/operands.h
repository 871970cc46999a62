// A validated call -> what one rank reads and writes.
#pragma once

#include "runtime/call.h"
#include "runtime/planner.h"
#include "task/operands.h"

namespace monomoe {

Operands bind_operands(const Call& call, const RankPlan& plan);

}  // namespace monomoe
