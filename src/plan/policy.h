// Default knobs per backend, each row with its reason.
#pragma once

#include <cstdint>

#include "base/int_math.h"
#include "plan/shape.h"

namespace monomoe {

enum class Arch : uint8_t { kCpu, kSm90 };

struct Policy {
  Arch arch;
  int64_t ring_rows;
  int64_t minibatch_rows;
  const char* reason;
};

constexpr Policy kPolicies[]{
    {Arch::kCpu, 4096, 1024, "rings of 4,096 rows at H = 1,024 fit the last-level cache"},
    {Arch::kSm90, 16384, 2048,
     "rings of 6,144 to 32,768 rows took the same time within 1 % on an H200 (docs/design, facts)"},
};

constexpr const Policy& policy_of(Arch arch) {
  for (const Policy& p : kPolicies) {
    if (p.arch == arch) return p;
  }
  return kPolicies[0];
}

/// Rows of row space kept for backward if the caller doesn't say: everything a single rank can
/// receive; with more ranks 1.25 times the mean, because the routing is not known. What does not
/// fit is computed again: slower, never wrong.
constexpr int64_t default_save_rows(int64_t group_tokens, int64_t top_k, int64_t experts,
                                    int64_t ranks, int64_t tile_rows) {
  const int64_t gaps{tile_rows * ceil_div(experts, ranks)};
  if (ranks == 1) return group_tokens * top_k + gaps;
  return ceil_div(5 * ceil_div(group_tokens * top_k, ranks), int64_t{4}) + gaps;
}

}  // namespace monomoe
