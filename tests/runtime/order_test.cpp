// Any order that the counters allow gives the same bits. Tiny tiles: with 4 rows a tile a few
// tokens reach ring reuse, chunked experts and recomputation.
#include <gtest/gtest.h>

#include "runtime/testing.h"
#include "support/problem.h"

namespace monomoe::testing {
namespace {

constexpr int kSeeds{200};

struct Setting {
  const char* name;
  Case c;
  Config config;
  int64_t ranks{1};
};

/// Ring sizes count tiles: 256 rows are 2 tiles of 4 rows here.
Config tiles(int64_t ring, int64_t minibatch, Save save, int64_t save_tiles) {
  Config c;
  c.ring_rows = ring * 128;
  c.minibatch_rows = minibatch * 128;
  c.save = save;
  c.save_rows = save_tiles * 128;
  c.workers = 4;
  return c;
}

std::vector<Setting> settings() {
  const Case plain{.tokens = 13, .hidden = 24, .inter = 40, .experts = 3, .top_k = 2};
  Case skewed{plain};
  skewed.skewed = true;
  skewed.tokens = 21;
  Case shared{plain};
  shared.shared = 24;
  shared.score = true;
  return {{"plain", plain, tiles(3, 1, Save::kPreact, 100), 1},
          {"smallest_ring", plain, tiles(2, 1, Save::kPreact, 100), 2},
          {"chunked", skewed, tiles(4, 2, Save::kPreact, 2), 1},
          {"chunked_two_ranks", skewed, tiles(2, 1, Save::kNone, 0), 2},
          {"three_ranks_partly_saved", skewed, tiles(4, 2, Save::kAll, 1), 3},
          {"shared", shared, tiles(3, 1, Save::kPreact, 1), 2},
          {"shared_not_saved", shared, tiles(2, 1, Save::kNone, 0), 3},
          {"five_ranks", shared, tiles(2, 1, Save::kAll, 100), 5}};
}

std::shared_ptr<Group> tiny_group(int64_t ranks) {
  GroupOptions options;
  options.timeout_s = 20;
  auto group = Group::local(ranks, options);
  set_tile(*group, 4, 16, 2);
  return group;
}

class Orders : public ::testing::TestWithParam<Setting> {
 protected:
  Problem problem{GetParam().c};
  std::shared_ptr<Group> group{tiny_group(GetParam().ranks)};

  /// One rank, a ring for all rows, everything saved. (Same tile: router gradients are summed by
  /// column tiles.)
  Results expected() {
    const auto plain = tiny_group(1);
    return solve(problem, *plain);
  }
};

TEST_P(Orders, TicketOrderWithOneBlockingWorkerARankEnds) {
  set_executor(*group, Order::kTicket, 0);
  EXPECT_TRUE(solve(problem, *group, GetParam().config).same_routed(expected()));
}

TEST_P(Orders, ThreadsGiveTheBitsOfTheSingleThread) {
  set_executor(*group, Order::kTicket, 0);
  const Results single{solve(problem, *group, GetParam().config)};
  set_executor(*group, Order::kThreads, 0);
  for (int i{0}; i < 20; ++i) {
    EXPECT_TRUE(solve(problem, *group, GetParam().config).same(single)) << "run " << i;
  }
}

TEST_P(Orders, AdversarialOrdersGiveTheSameBits) {
  set_executor(*group, Order::kTicket, 0);
  const Results single{solve(problem, *group, GetParam().config)};
  ASSERT_TRUE(single.same_routed(expected()));
  for (int seed{0}; seed < kSeeds; ++seed) {
    set_executor(*group, Order::kAdversarial, static_cast<uint64_t>(seed));
    poison(*group, static_cast<uint8_t>(seed % 3 == 0 ? 0xFF : seed % 3 == 1 ? 0x3C : 0x00));
    ASSERT_TRUE(solve(problem, *group, GetParam().config).same(single)) << "seed " << seed;
  }
}

TEST_P(Orders, EveryRankMayStopBeforeEveryTask) {
  set_executor(*group, Order::kAdversarial, 7);
  const Results free_run{solve(problem, *group, GetParam().config)};
  for (int64_t rank{0}; rank < group->ranks(); ++rank) {
    const int64_t tasks{tasks_done(*group, rank)};
    for (int64_t n{0}; n <= tasks; ++n) {
      hold(*group, rank, n);
      ASSERT_TRUE(solve(problem, *group, GetParam().config).same(free_run))
          << "rank " << rank << " stopped before task " << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layer, Orders, ::testing::ValuesIn(settings()),
                         [](const auto& p) { return std::string{p.param.name}; });

TEST(Memory, PoisonChangesNoBit) {
  Case c{.tokens = 150,
         .hidden = 72,
         .inter = 72,
         .experts = 6,
         .top_k = 3,
         .shared = 40,
         .score = true};
  Problem p{c};
  for (const Save save : {Save::kAll, Save::kPreact, Save::kNone}) {
    Config config;
    config.save = save;
    config.save_rows = 256;
    config.ring_rows = 256;
    const auto group = Group::local(3);
    const Results expected{solve(p, *group, config)};
    for (const uint8_t byte : {uint8_t{0xFF}, uint8_t{0x3C}, uint8_t{0x00}}) {
      poison(*group, byte);
      EXPECT_TRUE(solve(p, *group, config, {}, byte).same(expected))
          << "byte " << static_cast<int>(byte);
    }
  }
}

TEST(Epochs, WrapAtTwoToThe32) {
  Problem p{Case{}};
  const auto group = Group::local(3);
  const Results expected{solve(p, *group)};
  set_epoch(*group, 0xFFFFFFFDU);
  for (int i{0}; i < 4; ++i) EXPECT_TRUE(solve(p, *group).same(expected)) << "call " << i;
}

/// Several layers and micro-batches in flight on one group, in every order that pipelines use.
TEST(CallOrders, ForwardsBeforeBackwardsAndRepeatedBackwards) {
  Problem a{Case{.tokens = 70, .shared = 16, .seed = 11}};
  Problem b{Case{.tokens = 9, .hidden = 128, .inter = 72, .experts = 4, .seed = 12}};
  Problem c{Case{.tokens = 0, .seed = 13}};
  const auto group = Group::local(2);
  const Results ea{solve(a, *group)};
  const Results eb{solve(b, *group)};
  Results ra;
  Results rb;
  Results rc;
  Step sa{start(a, *group, {}, &ra.y)};
  Step sb{start(b, *group, {}, &rb.y)};
  Step sc{start(c, *group, {}, &rc.y)};
  finish(b, *group, sb, &rb);
  EXPECT_TRUE(rb.same(eb));
  finish(a, *group, sa, &ra);
  EXPECT_TRUE(ra.same(ea));
  finish(c, *group, sc, &rc);
  finish(b, *group, sb, &rb);
  EXPECT_TRUE(rb.same(eb)) << "a second backward gives the same bits";
  finish(a, *group, sa, &ra);
  EXPECT_TRUE(ra.same(ea));
}

TEST(TokensPerRank, AnySplitGivesTheSameBits) {
  Problem p{Case{.tokens = 90}};
  const auto one = Group::local(1);
  const Results expected{solve(p, *one)};
  const auto group = Group::local(4);
  for (const std::vector<int64_t>& split :
       {std::vector<int64_t>{1, 0, 88, 1}, {0, 0, 0, 90}, {90, 0, 0, 0}, {22, 23, 22, 23}}) {
    EXPECT_TRUE(solve(p, *group, {}, split).same_routed(expected));
  }
}

TEST(Accumulate, AddsOnceAndLeavesExpertsWithoutRowsAlone) {
  Case c{.tokens = 20, .experts = 4, .skip = 0};
  Problem p{c};
  for (int64_t i{0}; i < p.ids.size(); ++i) p.ids[i] = i % 2 == 0 ? 1 : 3;
  const auto group = Group::local(2);
  Results written;
  Step s{start(p, *group, {}, &written.y)};
  finish(p, *group, s, &written);
  Results sum{written};
  for (auto* g : {&sum.gate, &sum.up, &sum.down}) {
    for (int64_t i{0}; i < g->size(); ++i) (*g)[i] = 7.0F;
  }
  finish(p, *group, s, &sum, 0xFF, true);
  const int64_t size{c.inter * c.hidden};
  const auto check = [&](const Buffer<float>& got, const Buffer<float>& g) {
    for (int64_t i{0}; i < got.size(); ++i) {
      const bool empty{(i / size) % 2 == 0};
      ASSERT_EQ(got[i], empty ? 7.0F : 7.0F + g[i]) << "expert " << i / size;
      ASSERT_TRUE(!empty || std::bit_cast<uint32_t>(g[i]) == 0U);
    }
  };
  check(sum.gate, written.gate);
  check(sum.up, written.up);
  check(sum.down, written.down);
}

TEST(Faults, ARankThatNeverStartsEndsTheCallInTimeAndIsNamed) {
  Problem p{Case{.skip = 0}};
  GroupOptions options;
  options.timeout_s = 0.2;
  for (const Order order : {Order::kThreads, Order::kTicket, Order::kAdversarial}) {
    const auto group = Group::local(3, options);
    set_executor(*group, order, 1);
    never_start(*group, 1);
    Results r;
    try {
      (void)start(p, *group, {}, &r.y);
      FAIL() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kFault);
      EXPECT_NE(std::string{e.what()}.find("rank 1 missing"), std::string::npos) << e.what();
    }
    for (int64_t i{0}; i < r.y.size(); ++i) ASSERT_TRUE(std::isnan(to_float(r.y[i])));
    EXPECT_THROW(group->check(), Error);
    group->close();
    group->close();
    EXPECT_TRUE(group->closed());
  }
}

}  // namespace
}  // namespace monomoe::testing
