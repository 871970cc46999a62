#include "plan/workspace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/builder.h"

namespace monomoe::plan_tests {
namespace {

WorkspaceFacts random_facts(Dice& dice) {
  WorkspaceFacts f{};
  f.dims.ranks = dice.roll(1, 4);
  f.dims.rank = dice.roll(0, f.dims.ranks);
  f.dims.tokens = dice.roll(0, 300);
  f.dims.hidden = 8 * dice.roll(1, 60);
  f.dims.inter = 8 * dice.roll(1, 60);
  f.dims.experts = dice.roll(1, 9);
  f.dims.top_k = dice.roll(1, 4);
  f.dims.shared = 8 * dice.roll(0, 40);
  f.dims.score = dice.coin();
  f.ring_tiles = dice.roll(2, 9);
  f.tile_capacity = dice.roll(0, 30);
  f.backward = dice.coin();
  f.recomputes = dice.coin();
  f.spill_tiles = dice.roll(0, 30);
  f.chain_tiles = dice.roll(0, 30);
  return f;
}

/// Sorted by offset, each begins behind the one before and none is beyond `end`.
void expect_disjoint(std::vector<Extent> extents, int64_t end) {
  std::erase_if(extents, [](const Extent& e) { return e.bytes == 0; });
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
  int64_t at{0};
  for (const Extent& e : extents) {
    EXPECT_GE(e.offset, at);
    EXPECT_EQ(e.offset % kRegionAlign, 0);
    at = e.offset + e.bytes;
  }
  EXPECT_LE(at, end);
}

TEST(WorkspaceRegions, DoNotOverlap) {
  for (uint64_t seed{0}; seed < 300; ++seed) {
    Dice dice{seed};
    const Layout l{workspace_layout(random_facts(dice))};
    std::vector<Extent> heap;
    std::vector<Extent> local;
    for (int32_t i{0}; i < kNumRegions; ++i) {
      (i < kNumHeapRegions ? heap : local).push_back(l[static_cast<Region>(i)]);
    }
    expect_disjoint(heap, l.heap_bytes);
    expect_disjoint(local, l.local_bytes);
  }
}

TEST(WorkspaceCounters, DoNotOverlap) {
  for (uint64_t seed{0}; seed < 300; ++seed) {
    Dice dice{seed};
    const WorkspaceFacts f{random_facts(dice)};
    const CounterLayout l{counter_layout(f)};
    std::vector<int32_t> owners(static_cast<size_t>(l.words), 0);
    for (int32_t i{0}; i < kNumCounters; ++i) {
      const auto c = static_cast<Counter>(i);
      if (is_heap(c)) continue;
      for (int64_t k{0}; k < counter_count(f, c); ++k) {
        ASSERT_GE(l.at[i] + k, kLaunchCounterWords) << name_of(c);
        ASSERT_LT(l.at[i] + k, l.words) << name_of(c);
        ++owners[static_cast<size_t>(l.at[i] + k)];
      }
    }
    EXPECT_TRUE(std::all_of(owners.begin(), owners.end(), [](int32_t n) { return n <= 1; }));
  }
}

TEST(WorkspaceSaved, PartsDoNotOverlap) {
  for (uint64_t seed{0}; seed < 300; ++seed) {
    Dice dice{seed};
    const WorkspaceFacts f{random_facts(dice)};
    Knobs k{};
    k.save_tiles = dice.roll(0, 5);
    k.save_x = dice.coin();
    k.save_shared = dice.coin();
    const SavedLayout l{saved_layout(f.dims, f.tile, k)};
    expect_disjoint({l.preact, l.x, l.shared_preact, l.score}, l.bytes);
  }
}

}  // namespace
}  // namespace monomoe::plan_tests
