// Launch words: equal for one call on all ranks, different for any other.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "comm/sym_heap.h"
#include "plan/plan.h"

namespace monomoe {
namespace {

struct Launch {
  TableHeader header{};
  Plan plan;

  Launch() {
    header.hash = 0x1234;
    plan.tables.header = &header;
    plan.epoch = 0xFFFFFFFFU;
    plan.dims.hidden = 64;
    plan.dims.inter = 128;
    plan.dims.experts = 8;
    plan.dims.top_k = 2;
    plan.knobs.save_tiles = 3;
  }
};

TEST(LaunchWords, AreEqualOnAllRanksOfOneCall) {
  Launch a;
  Launch b;
  b.plan.dims.rank = 1;
  b.plan.dims.tokens = 77;
  b.plan.knobs.workers = 5;
  EXPECT_EQ(launch_word(a.plan).stamp, launch_word(b.plan).stamp);
  EXPECT_EQ(launch_word(a.plan).epoch(), 0xFFFFFFFFU);
  EXPECT_EQ(launch_word(a.plan).kind(), CallKind::kForward);
}

TEST(LaunchWords, DifferInEveryPartOfACall) {
  const LaunchWord first{launch_word(Launch{}.plan)};
  const std::vector<std::function<void(Launch*)>> changes{
      [](Launch* l) { l->plan.epoch = 0; },
      [](Launch* l) { l->plan.backward = true; },
      [](Launch* l) { l->header.hash ^= 1U; },
      [](Launch* l) { l->plan.dims.hidden = 72; },
      [](Launch* l) { l->plan.dims.experts = 9; },
      [](Launch* l) { l->plan.dims.top_k = 1; },
      [](Launch* l) { l->plan.knobs.save_tiles = 2; },
      [](Launch* l) { l->plan.knobs.save_x = true; },
      [](Launch* l) { l->plan.knobs.save_shared = false; },
      [](Launch* l) { std::swap(l->plan.dims.experts, l->plan.dims.top_k); },
  };
  for (size_t i{0}; i < changes.size(); ++i) {
    Launch l;
    changes[i](&l);
    EXPECT_NE(launch_word(l.plan).stamp, first.stamp) << "change " << i;
  }
  for (const uint32_t odd : {kOddSchedule, kOddKind, kOddDims}) {
    EXPECT_NE(launch_word(Launch{}.plan, odd).stamp, first.stamp) << odd;
  }
}

TEST(LaunchWords, OfARankThatHasMadeNoCallAreNone) {
  EXPECT_EQ(LaunchWord::idle(7).epoch(), 7U);
  EXPECT_EQ(LaunchWord::idle(7).kind(), CallKind::kNone);
}

}  // namespace
}  // namespace monomoe
