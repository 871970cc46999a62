// Facts of a call -> plans, one a rank.
#pragma once

#include <cstdint>
#include <vector>

#include "monomoe/layer.h"
#include "plan/plan.h"
#include "plan/policy.h"
#include "plan/workspace.h"
#include "runtime/call.h"
#include "runtime/group_impl.h"

namespace monomoe {

/// Where one rank's tables lie in `Schedule::tables`, and its dims as far as ids know them.
struct RankTables {
  Dims dims;
  Tables tables;
  int32_t* words{nullptr};
  int64_t first_token{0};
};
std::vector<RankTables> rank_tables(const Group::Impl& group, const Schedule& schedule);

/// The same length for every split of the tokens.
int64_t schedule_words(const Group::Impl& group, int64_t tokens, int64_t experts, int64_t top_k);

/// What a backend contributes to a plan.
struct PlanTraits {
  Arch arch{Arch::kCpu};
  int32_t workers{1};         // a rank, if the caller doesn't say
  bool tables_on_host{true};  // else memory is for the worst routing
};

/// What the caller's options and the policy make of the knobs. `dims` are those of any rank.
Knobs choose_knobs(const Config& config, const PlanTraits& traits, const TileShape& tile,
                   const Dims& dims, int64_t group_tokens, bool backward);

/// A plan, what its memory must hold, and where its part of `saved` begins.
struct RankPlan {
  Plan plan;
  WorkspaceFacts facts;
  int64_t first_token{0};
  int64_t saved_offset{0};
  SavedLayout saved;
};

/// The most main-line tickets that any routing can make of a plan.
int64_t most_tickets(const RankPlan& plan);

/// Plans of all ranks for a validated call. The epoch is filled in at launch.
std::vector<RankPlan> make_plans(const Group::Impl& group, const Call& call,
                                 const PlanTraits& traits);

}  // namespace monomoe
