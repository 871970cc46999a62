// What a wait that expires leaves behind: an error that names the missing rank, NaN in every output
// and nowhere else, and a group that can only be closed.
#include "runtime/faults.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>

#include "runtime/testing.h"
#include "runtime/valid_call.h"

namespace monomoe::testing {
namespace {

constexpr double kTimeoutS{0.2};

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <class F>
std::string fault_of(const F& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kFault) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

bool all_nan(Guarded& g, DType dtype) {
  for (int64_t i{0}; i < g.size(); ++i) {
    const float v{dtype == DType::kBf16 ? to_float(g.at<Bf16>(i)) : g.at<float>(i)};
    if (!std::isnan(v)) return false;
  }
  return g.intact();
}

struct FaultyCall : ValidCall {
  FaultyCall() {
    group = Group::local(2, {kTimeoutS});
    run_schedule();
  }
};

TEST(Fault, InForwardFillsYWithNan) {
  FaultyCall c;
  never_start(*c.group, 1);
  const auto start = std::chrono::steady_clock::now();
  const std::string text{fault_of([&] { c.run_forward(); })};
  const std::chrono::duration<double> took{std::chrono::steady_clock::now() - start};
  EXPECT_GE(took.count(), kTimeoutS);
  EXPECT_LT(took.count(), 20 * kTimeoutS);
  EXPECT_TRUE(says(text, "group: 2 ranks in forward call 1 wanted, rank 1 missing")) << text;
  EXPECT_TRUE(says(text, "rank 0 (")) << "who waited: " << text;
  EXPECT_TRUE(says(text, " seen, ") && says(text, " wanted; ")) << "for what: " << text;
  EXPECT_TRUE(says(text, "close the group")) << "what to do: " << text;
  EXPECT_TRUE(all_nan(c.y_memory, DType::kBf16));
}

TEST(Fault, InBackwardFillsEveryGradientWithNanMainGradToo) {
  for (const bool accumulate : {false, true}) {
    FaultyCall c;
    c.accumulate = accumulate;
    c.run_forward();
    const std::vector<std::byte> saved{c.saved_memory.bytes()};
    never_start(*c.group, 0);
    const std::string text{fault_of([&] { c.run_backward(); })};
    EXPECT_TRUE(says(text, "2 ranks in backward call 2 wanted, rank 0 missing")) << text;
    EXPECT_TRUE(all_nan(c.dx_memory, DType::kBf16));
    EXPECT_TRUE(all_nan(c.dtopk_memory, DType::kF32));
    for (Guarded& g : c.grad_memory) EXPECT_TRUE(all_nan(g, DType::kF32));
    EXPECT_EQ(c.saved_memory.bytes(), saved);
  }
}

TEST(Fault, IsReportedByEveryLaterCallUntilTheGroupIsClosed) {
  FaultyCall c;
  never_start(*c.group, 1);
  const std::string text{fault_of([&] { c.run_forward(); })};
  never_start(*c.group, -1);
  const auto before = c.bytes();
  EXPECT_EQ(fault_of([&] { c.run_schedule(); }), text);
  EXPECT_EQ(fault_of([&] { c.run_forward(); }), text);
  EXPECT_EQ(fault_of([&] { c.run_backward(); }), text);
  EXPECT_EQ(fault_of([&] { c.group->check(); }), text);
  EXPECT_EQ(c.bytes(), before) << "no later call writes anything";
  c.group->close();
  try {
    c.group->check();
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kState);
  }
}

TEST(Fault, OfOneGroupLeavesOthersAlone) {
  FaultyCall bad;
  FaultyCall good;
  never_start(*bad.group, 1);
  (void)fault_of([&] { bad.run_forward(); });
  EXPECT_NO_THROW(good.run_forward());
  EXPECT_NO_THROW(good.run_backward());
}

TEST(Fault, NamesTheWaitOfEveryExecutor) {
  for (const Order order : {Order::kThreads, Order::kTicket, Order::kAdversarial}) {
    FaultyCall c;
    set_executor(*c.group, order, 3);
    never_start(*c.group, 0);
    const std::string text{fault_of([&] { c.run_forward(); })};
    EXPECT_TRUE(says(text, "rank 0 missing; rank 1 (")) << text;
  }
}

/// A call whose ranks have nothing to wait for: no tokens, so no rows and no shared expert's tiles
/// but gradients of zero to write.
struct EmptyCall {
  Problem problem{Case{.tokens = 0, .experts = 4}};
  std::shared_ptr<Group> group{Group::local(2, {kTimeoutS})};
  Results results;
  Step step{start(problem, *group, {}, &results.y)};
};

TEST(Fault, WithoutAWaiterNamesTheRankThatIsMissing) {
  for (const Order order : {Order::kThreads, Order::kTicket, Order::kAdversarial}) {
    for (const int32_t absent : {0, 1}) {
      EmptyCall c;
      set_executor(*c.group, order, 3);
      never_start(*c.group, absent);
      const std::string text{fault_of([&] { finish(c.problem, *c.group, c.step, &c.results); })};
      const std::string missing{"rank " + std::to_string(absent) + " missing; "};
      EXPECT_TRUE(says(text, "group: 2 ranks in backward call 2 wanted, " + missing +
                                 "the other ranks are done and waited "))
          << text;
      EXPECT_TRUE(says(text, "close the group, find out why the rank did not come")) << text;
      for (const Buffer<float>* g : {&c.results.gate, &c.results.up, &c.results.down}) {
        for (int64_t i{0}; i < g->size(); ++i) ASSERT_TRUE(std::isnan((*g)[i])) << i;
      }
      EXPECT_EQ(fault_of([&] { c.group->check(); }), text);
    }
  }
}

/// A rank whose launch word says something else is in another call: nobody touches its rows.
TEST(Fault, OfRanksInDifferentCallsSaysWhoCalledWhat) {
  struct Row {
    uint32_t parts;
    const char* said;
  };
  for (const Row& row :
       {Row{kKind, "wanted, forward on rank 0 and backward on rank 1 given as call 1; "},
        Row{kSchedule,
            "wanted, forward on ranks 0 and 1 with different schedules given as call 1; "},
        Row{kSizes,
            "wanted, forward on ranks 0 and 1 with different hidden, top_k, experts or save "
            "mode given as call 1; "}}) {
    FaultyCall c;
    falsify(*c.group, 1, row.parts);
    const auto start = std::chrono::steady_clock::now();
    const std::string text{fault_of([&] { c.run_forward(); })};
    const std::chrono::duration<double> took{std::chrono::steady_clock::now() - start};
    EXPECT_LT(took.count(), kTimeoutS) << "at once";
    EXPECT_TRUE(says(text, row.said)) << text;
    EXPECT_TRUE(says(text, "make the same calls in the same order on every rank")) << text;
    EXPECT_TRUE(all_nan(c.y_memory, DType::kBf16));
    EXPECT_EQ(fault_of([&] { c.group->check(); }), text);
  }
}

TEST(Fault, OfRanksInDifferentCallsLooksAtRanksThatCameOnly) {
  FaultyCall c;
  falsify(*c.group, 1, kKind);
  never_start(*c.group, 1);
  const std::string text{fault_of([&] { c.run_forward(); })};
  EXPECT_TRUE(says(text, "rank 1 missing")) << text;
}

TEST(FaultSentence, SaysWhoIsMissingAndThatTheOthersAreDone) {
  Fault f;
  f.reason = FaultReason::kIdle;
  f.rank = 3;
  f.epoch = 7;
  f.backward = true;
  f.waited_s = 2.5;
  f.missing = {3};
  EXPECT_EQ(describe(f, 4),
            "group: 4 ranks in backward call 7 wanted, rank 3 missing; the other ranks are done "
            "and waited 2.5 s; the outputs hold NaN: close the group, find out why the rank did "
            "not come");
}

TEST(FaultSentence, SaysWhoWaitedInWhichTaskForWhichCounter) {
  Fault f;
  f.rank = 1;
  f.line = Line::kMain;
  f.task.kind = Kind::kGateUp;
  f.task.row = 5;
  f.task.col = 2;
  f.counter = {Counter::kRowsReady, 1, 5};
  f.seen = 64;
  f.wanted = 128;
  f.epoch = 9;
  f.waited_s = 600;
  f.missing = {0, 2};
  EXPECT_EQ(describe(f, 3),
            "group: 3 ranks in forward call 9 wanted, ranks 0, 2 missing; rank 1 (main line, "
            "gate_up, row 5, column 2) waited 600 s for rows_ready[5] of rank 1: 64 seen, 128 "
            "wanted; the outputs hold NaN: close the group, find out why the rank did not come");
  f.missing.clear();
  EXPECT_TRUE(says(describe(f, 3), "wanted, no progress on any rank; rank 1 (main line"));
}

TEST(FaultSentence, OfAScheduleSaysWhoseIdsOrBlocksAreMissing) {
  Fault f;
  f.reason = FaultReason::kIds;
  f.rank = 1;
  f.epoch = 4;
  f.waited_s = 600;
  f.missing = {2};
  EXPECT_EQ(describe(f, 3),
            "group: 3 ranks in schedule call 4 wanted, rank 2 missing; rank 1 waited 600 s for its "
            "expert ids; no later call runs: close the group, find out why the rank did not come");
  f.reason = FaultReason::kBlocks;
  EXPECT_EQ(describe(f, 1),
            "group: 1 rank in schedule call 4 wanted, blocks of rank 1 missing for 600 s; no later "
            "call runs: close the group, let no other kernel occupy the GPU for so long");
}

}  // namespace
}  // namespace monomoe::testing
