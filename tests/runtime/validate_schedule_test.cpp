// Every refusal of schedule, of groups, sizes and backends: its code, its four parts, and that
// nothing was written.
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <string>

#include "runtime/refusals.h"

namespace monomoe::testing {
namespace {

constexpr ErrorCode kValue{ErrorCode::kValue};
constexpr ErrorCode kType{ErrorCode::kType};
constexpr ErrorCode kState{ErrorCode::kState};
constexpr double kInf{std::numeric_limits<double>::infinity()};
constexpr double kNan{std::numeric_limits<double>::quiet_NaN()};
constexpr int64_t kBillion{int64_t{1} << 30};

constexpr const char* kPadWeights{"pad the weights, so that rows are 16 bytes"};
constexpr const char* kWidth{"a multiple of 8 in [8, 1048576]"};
constexpr const char* kTooManyRoutes{"a token can't have more routes than there are experts"};

TEST(RefusesSchedule, IdsOfTheWrongKind) {
  expect_refusals(
      kSchedule,
      {{[](ValidCall& v) { v.ids = Tensor{}; },
        {kValue, "topk_ids", "a tensor", "nothing given", "pass it"}},
       {[](ValidCall& v) { v.ids.device = kNowhere; }, no_backend("topk_ids")},
       {[](ValidCall& v) { v.ids.dtype = DType::kF32; },
        {kType, "topk_ids", "int32 or int64", "float32 given", "convert it with .to(torch.int32)"}},
       {[](ValidCall& v) { v.ids.ndim = 1; },
        {kValue, "topk_ids", "shape [T, K]", "[6] given", "one row a token"}},
       {[](ValidCall& v) { v.ids.data = nullptr; },
        {kValue, "topk_ids", "memory behind the tensor", "a null pointer given",
         "pass the tensor's data"}}});
}

TEST(RefusesSchedule, IdsThatAreNotAligned) {
  const auto misaligned = [](int64_t bytes) {
    return Sentence{kValue, "topk_ids",
                    "elements at " + std::to_string(bytes) + "-byte aligned addresses",
                    "a misaligned first element given", "pass .clone()"};
  };
  Buffer<int64_t> ids{14};
  expect_refusals(kSchedule, {{[](ValidCall& v) { shift(v.ids, 2); }, misaligned(4)},
                              {[&ids](ValidCall& v) {
                                 v.ids = contiguous(ids.data(), DType::kI64, 6, 2);
                                 shift(v.ids, 4);
                               },
                               misaligned(8)}});
}

TEST(RefusesSchedule, EveryOtherDtypeByItsName) {
  const std::vector<std::pair<DType, std::string>> names{
      {DType::kBf16, "bfloat16"}, {DType::kF32, "float32"}, {DType::kU8, "uint8"},
      {DType::kF16, "float16"},   {DType::kF64, "float64"}, {DType::kI16, "int16"},
      {DType::kI8, "int8"},       {DType::kBool, "bool"},   {DType::kOther, "another dtype"}};
  for (const auto& [dtype, name] : names) {
    expect_refusals(kSchedule, {{[d = dtype](ValidCall& v) { v.ids.dtype = d; },
                                 {kType, "topk_ids", "int32 or int64", name + " given",
                                  "convert it with .to(torch.int32)"}}});
  }
}

TEST(RefusesSchedule, SizesThatAreNotLegal) {
  const std::string experts{"pass the number of experts of all ranks"};
  expect_refusals(
      kSchedule,
      {{[](ValidCall& v) { v.sched.experts = 0; },
        {kValue, "experts", "a value in [1, 65536]", "0 given", experts}},
       {[](ValidCall& v) { v.sched.experts = 65537; },
        {kValue, "experts", "a value in [1, 65536]", "65537 given", experts}},
       {[](ValidCall& v) { v.ids.shape[1] = 4; },
        {kValue, "top_k", "1 <= K <= E = 3", "4 given", kTooManyRoutes}},
       {[](ValidCall& v) { v.ids.shape[1] = 0; },
        {kValue, "top_k", "1 <= K <= E = 3", "0 given", kTooManyRoutes}},
       {[](ValidCall& v) { v.ids.shape[0] = kBillion; },
        {kValue, "topk_ids", "at most 2^30 routes", "1073741824 tokens of 2 given",
         "split the batch"}},
       {[](ValidCall& v) { v.sched.top_k = 1; },
        {kValue, "schedule.top_k", "2 as in topk_ids", "1 given", "pass the K of the ids"}}});
}

TEST(RefusesSchedule, TokenCountsThatDoNotFit) {
  constexpr const char* kNoTokens{"a rank without tokens has 0"};
  expect_refusals(
      kSchedule | kBoth,
      {{[](ValidCall& v) { v.sched.tokens_per_rank = {6}; },
        {kValue, "tokens_per_rank", "2 counts, one a rank", "1 given",
         "pass one count for each rank of the group"}},
       {[](ValidCall& v) {
          v.sched.tokens_per_rank = {7, -1};
        },
        {kValue, "tokens_per_rank", "a value in [0, 1073741824]", "-1 given", kNoTokens}},
       {[](ValidCall& v) {
          v.sched.tokens_per_rank = {0, kBillion + 1};
        },
        {kValue, "tokens_per_rank", "a value in [0, 1073741824]", "1073741825 given", kNoTokens}},
       {[](ValidCall& v) {
          // Their sum is 6 only if it overflows.
          v.sched.tokens_per_rank = {std::numeric_limits<int64_t>::max(), 7};
        },
        {kValue, "tokens_per_rank", "a value in [0, 1073741824]", "9223372036854775807 given",
         kNoTokens}},
       {[](ValidCall& v) {
          v.sched.tokens_per_rank = {3, 2};
        },
        {kValue, "tokens_per_rank", "counts that add up to T = 6", "5 given",
         "pass the token counts of this call"}}});
}

TEST(RefusesSchedule, TablesThatDoNotFit) {
  ValidCall valid;
  const int64_t words{valid.sched.tables.shape[0]};
  const std::string wanted{"contiguous [" + std::to_string(words) + "]"};
  const std::string given{"[" + std::to_string(words) + "] given"};
  const std::string name{"schedule.tables"};
  const std::string remedy{"make the schedule with this group, T, E and K"};
  expect_refusals(
      kSchedule | kBoth,
      {{[](ValidCall& v) { v.sched.tables = Tensor{}; },
        {kValue, name, "a tensor", "nothing given", "pass it"}},
       {[](ValidCall& v) { v.sched.tables.data = nullptr; },
        {kValue, name, "memory behind the tensor", "a null pointer given",
         "pass the tensor's data"}},
       {[](ValidCall& v) { v.sched.tables.device = kNowhere; }, no_backend(name)},
       {[](ValidCall& v) { v.sched.tables.dtype = DType::kI64; },
        {kType, name, "int32", "int64 given", "convert it with .to(torch.int32)"}},
       {[](ValidCall& v) { --v.sched.tables.shape[0]; },
        {kValue, name, wanted, "[" + std::to_string(words - 1) + "] given", remedy}},
       {[](ValidCall& v) { v.sched.tables.ndim = 2; },
        {kValue, name, wanted, "[" + std::to_string(words) + ", 0] given", remedy}},
       {[](ValidCall& v) { v.sched.tables.stride[0] = 2; }, {kValue, name, wanted, given, remedy}},
       {[](ValidCall& v) { shift(v.sched.tables, 4); }, {kValue, name, wanted, given, remedy}}});
}

TEST(RefusesSchedule, IdsOutOfRangeAndNamesTheFirst) {
  const std::string remedy{"fix the router or pass another number of experts; -1 means not routed"};
  constexpr int32_t kLowest{std::numeric_limits<int32_t>::min()};
  constexpr int32_t kHighest{std::numeric_limits<int32_t>::max()};
  for (const int32_t id : {-2, 3, kLowest, kHighest}) {
    expect_refusals(kSchedule, {{[id](ValidCall& v) { v.problem.ids[9] = v.problem.ids[11] = id; },
                                 {kValue, "topk_ids", "values in [-1, 3)",
                                  std::to_string(id) + " found at [4, 1]", remedy}}});
  }
}

TEST(RefusesSchedule, Int64IdsThatWouldFitWhenCutTo32Bits) {
  Buffer<int64_t> ids{12};
  for (const int64_t id : {(int64_t{1} << 32) + 1, std::numeric_limits<int64_t>::min(),
                           std::numeric_limits<int64_t>::max()}) {
    for (int64_t i{0}; i < 12; ++i) ids[i] = i == 5 ? id : 0;
    expect_refusals(
        kSchedule,
        {{[&ids](ValidCall& v) { v.ids = contiguous(ids.data(), DType::kI64, 6, 2); },
          {kValue, "topk_ids", "values in [-1, 3)", std::to_string(id) + " found at [2, 1]",
           "fix the router or pass another number of experts; -1 means not routed"}}});
  }
}

TEST(RefusesGroup, AClosedOne) {
  const Sentence closed{kState, "group", "an open group", "a closed one given",
                        "make a new group and a new schedule"};
  expect_refusals(kSchedule | kBoth, {{[](ValidCall& v) { v.group->close(); }, closed}});
  ValidCall v;
  v.group->close();
  expect_refusal([&] { v.group->check(); }, closed);
  expect_refusal([] { (void)Group::find(-1); }, closed);
}

TEST(RefusesGroup, RanksAndTimeoutsOutOfRange) {
  for (const int64_t ranks : {int64_t{0}, int64_t{-3}, int64_t{1025}}) {
    const Sentence s{kValue, "ranks", "a value in [1, 1024]", std::to_string(ranks) + " given",
                     "pass the number of ranks"};
    expect_refusal([&] { (void)Group::local(ranks); }, s);
    expect_refusal([&] { (void)split_tokens(10, ranks); }, s);
    expect_refusal([&] { (void)explain({10, 8, 8, 2, 1, 0, ranks}); }, s);
  }
  const std::vector<std::pair<double, std::string>> timeouts{
      {0.0, "0.0"}, {-2.0, "-2.0"}, {kInf, "inf"}, {kNan, "nan"}};
  for (const auto& [timeout, given] : timeouts) {
    expect_refusal(
        [&] { (void)Group::local(1, {timeout}); },
        {kValue, "timeout_s", "a finite value > 0", given + " given", "the default is 600"});
  }
}

TEST(RefusesShape, SizesThatAreNotLegal) {
  const auto group = Group::local(2);
  struct Row {
    Shape shape;
    Sentence sentence;
  };
  const std::vector<Row> rows{
      {{-1, 8, 8, 2, 1, 0, 2},
       {kValue, "tokens", "a value in [0, 1073741824]", "-1 given", "split the batch"}},
      {{kBillion + 1, 8, 8, 2, 1, 0, 2},
       {kValue, "tokens", "a value in [0, 1073741824]", "1073741825 given", "split the batch"}},
      {{9, 12, 8, 2, 1, 0, 2}, {kValue, "hidden width H", kWidth, "12 given", kPadWeights}},
      {{9, 8, 0, 2, 1, 0, 2}, {kValue, "intermediate width I", kWidth, "0 given", kPadWeights}},
      {{9, 8, 8, 2, 1, 4, 2}, {kValue, "shared width Is", kWidth, "4 given", kPadWeights}},
      {{9, 8, 8, 0, 1, 0, 2},
       {kValue, "experts", "a value in [1, 65536]", "0 given",
        "pass the number of experts of all ranks"}},
      {{9, 8, 8, 2, 3, 0, 2}, {kValue, "top_k", "1 <= K <= E = 2", "3 given", kTooManyRoutes}},
      {{kBillion / 2, 8, 8, 2, 2, 0, 2},
       {kValue, "topk_ids", "at most 2^30 routes", "536870912 tokens of 2 given",
        "split the batch"}}};
  for (const Row& r : rows) {
    SCOPED_TRACE(r.sentence.text());
    expect_refusal([&] { (void)saved_bytes(*group, r.shape, {}); }, r.sentence);
    expect_refusal([&] { (void)explain(r.shape); }, r.sentence);
  }
  expect_refusal([] { (void)split_tokens(-1, 2); }, rows[0].sentence);
  expect_refusal([] { (void)split_tokens(kBillion + 1, 2); }, rows[1].sentence);
  expect_refusal([&] { (void)schedule_words(*group, 9, 2, 3); }, rows[6].sentence);
  expect_refusal(
      [&] {
        (void)saved_bytes(*group, {9, 8, 8, 2, 1, 0, 3}, {});
      },
      {kValue, "ranks", "2 as in the group", "3 given", "pass the group's"});
}

TEST(RefusesBackend, OneThatThisMachineDoesNotHave) {
  std::string names;
  for (const std::string& n : backends()) names += (names.empty() ? "" : ", ") + n;
  const Sentence unknown{ErrorCode::kBackend, "MONOMOE_BACKEND", "one of {" + names + "}",
                         "warp given", "unset it or run `python -m monomoe doctor`"};
  setenv("MONOMOE_BACKEND", "warp", 1);
  expect_refusals(kSchedule, {{[](ValidCall&) {}, unknown}});
  setenv("MONOMOE_BACKEND", "cpu", 1);
  ValidCall v;
  v.run_schedule();
  EXPECT_NO_THROW(v.run_forward());
  setenv("MONOMOE_BACKEND", "warp", 1);
  const auto before = v.bytes();
  expect_refusal([&] { v.run_forward(); }, unknown);
  expect_refusal([&] { v.run_backward(); }, unknown);
  EXPECT_EQ(v.bytes(), before);
  unsetenv("MONOMOE_BACKEND");
}

}  // namespace
}  // namespace monomoe::testing
