// Refusals of memory: none behind a tensor, outputs that overlap themselves or are another tensor
// of the call; and of more tasks than can be counted.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/refusals.h"
#include "runtime/validate.h"

namespace monomoe::testing {
namespace {

constexpr ErrorCode kValue{ErrorCode::kValue};

/// A tensor of the call by the name that errors use.
Tensor& tensor_of(ValidCall& v, const std::string& name) {
  const auto named = [](const std::string& prefix, WeightTensors& w) {
    return std::map<std::string, Tensor*>{{prefix + "gate", &w.gate},
                                          {prefix + "up", &w.up},
                                          {prefix + "down", &w.down},
                                          {prefix + "shared_gate", &w.shared_gate},
                                          {prefix + "shared_up", &w.shared_up},
                                          {prefix + "shared_down", &w.shared_down},
                                          {prefix + "shared_score", &w.shared_score}};
  };
  std::map<std::string, Tensor*> all{{"x", &v.x},
                                     {"y", &v.y},
                                     {"dy", &v.dy},
                                     {"dx", &v.dx},
                                     {"saved", &v.saved},
                                     {"topk_weights", &v.topk_weights},
                                     {"dtopk_weights", &v.dtopk_weights},
                                     {"schedule.tables", &v.sched.tables}};
  all.merge(named("weights.", v.weights));
  all.merge(named(v.accumulate ? "accumulate." : "grads.", v.grads));
  return *all.at(name);
}

TEST(RefusesCall, ElementsWithoutMemory) {
  const auto expect_memory = [](int calls, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      expect_refusals(calls, {{[&name](ValidCall& v) { tensor_of(v, name).data = nullptr; },
                               {kValue, name, "memory behind the tensor", "a null pointer given",
                                "pass the tensor's data"}}});
    }
  };
  expect_memory(kBoth, {"x", "topk_weights", "saved", "weights.gate", "weights.up", "weights.down",
                        "weights.shared_gate", "weights.shared_up", "weights.shared_down",
                        "weights.shared_score"});
  expect_memory(kForward, {"y"});
  expect_memory(kBackward, {"dy", "dx", "dtopk_weights", "grads.gate", "grads.up", "grads.down",
                            "grads.shared_gate", "grads.shared_up", "grads.shared_down",
                            "grads.shared_score"});
}

TEST(RefusesBackward, OutputsWhoseElementsOverlap) {
  const auto overlap = [](const std::string& name, const std::string& strides) {
    return Sentence{kValue, name, "elements that do not overlap", "strides " + strides + " given",
                    "pass a tensor of its own"};
  };
  expect_refusals(
      kBackward,
      {{[](ValidCall& v) {
          v.dtopk_weights.stride = {0, 1};
        },
        overlap("dtopk_weights", "[0, 1]")},
       {[](ValidCall& v) {
          v.dtopk_weights.stride = {1, 1};
        },
        overlap("dtopk_weights", "[1, 1]")},
       {[](ValidCall& v) {
          v.dtopk_weights.stride = {1, 5};
        },
        overlap("dtopk_weights", "[1, 5]")},
       // [3, 8, 16]: experts that begin within each other, or rows that leave no room for one.
       {[](ValidCall& v) { v.grads.gate.stride[0] = 64; }, overlap("grads.gate", "[64, 16, 1]")},
       {[](ValidCall& v) { v.grads.up.stride[1] = 32; }, overlap("grads.up", "[128, 32, 1]")},
       {[](ValidCall& v) {
          v.accumulate = true;
          v.grads.down.stride[0] = 8;
        },
        overlap("accumulate.down", "[8, 8, 1]")}});
}

TEST(RefusesBackward, NoOutputThatIsStridedWithoutOverlap) {
  ValidCall v;
  v.run_schedule();
  v.run_forward();
  Buffer<float> memory{6 * 2 + 3 * 8 * 32};
  v.dtopk_weights.data = memory.data();
  v.dtopk_weights.stride = {1, 6};  // [K, T] transposed
  v.grads.gate.data = memory.data() + 12;
  v.grads.gate.stride = {16, 48, 1};  // experts within a row
  EXPECT_NO_THROW(v.run_backward());
}

/// Each pair: an output, and the tensor whose memory it gets.
void expect_own_memory(int calls, bool accumulate,
                       const std::vector<std::pair<std::string, std::string>>& pairs) {
  for (const auto& [name, other] : pairs) {
    expect_refusals(calls, {{[accumulate, &n = name, &o = other](ValidCall& v) {
                               v.accumulate = accumulate;
                               tensor_of(v, n).data = tensor_of(v, o).data;
                             },
                             {kValue, name, "memory of its own",
                              "the memory of " + other + " given", "pass a new tensor"}}});
  }
}

TEST(RefusesCall, OutputsThatAreInputs) {
  expect_own_memory(kForward, false,
                    {{"y", "x"},
                     {"y", "topk_weights"},
                     {"y", "schedule.tables"},
                     {"y", "weights.gate"},
                     {"y", "weights.up"},
                     {"y", "weights.down"},
                     {"y", "weights.shared_gate"},
                     {"y", "weights.shared_up"},
                     {"y", "weights.shared_down"},
                     {"y", "weights.shared_score"},
                     {"saved", "x"}});
  expect_own_memory(kBackward, false,
                    {{"dx", "x"},
                     {"dx", "dy"},
                     {"dx", "saved"},
                     {"dx", "schedule.tables"},
                     {"dtopk_weights", "topk_weights"},
                     {"grads.down", "weights.down"},
                     {"grads.shared_up", "weights.shared_up"},
                     {"grads.shared_score", "weights.shared_score"}});
}

TEST(RefusesCall, OutputsThatOverlapPartly) {
  expect_refusals(
      kBackward,
      {{[](ValidCall& v) { v.grads.down.data = static_cast<std::byte*>(v.grads.gate.data) + 64; },
        {kValue, "grads.gate", "memory of its own", "the memory of grads.down given",
         "pass a new tensor"}}});
}

TEST(RefusesCall, OutputsThatAreEachOther) {
  expect_own_memory(kForward, false, {{"y", "saved"}});
  expect_own_memory(kBackward, false,
                    {{"dx", "dtopk_weights"},
                     {"dx", "grads.down"},
                     {"grads.gate", "grads.up"},
                     {"grads.down", "grads.shared_down"},
                     {"grads.shared_gate", "grads.shared_up"}});
  expect_own_memory(kBackward, true,
                    {{"accumulate.gate", "accumulate.up"}, {"dx", "accumulate.shared_score"}});
}

// Weights of 2^20 x 2^20 of which only the addresses exist: the refusal comes before anyone reads.
TEST(RefusesBackward, MoreTasksThanTicketsCanCount) {
  constexpr int64_t kWidest{int64_t{1} << 20};
  constexpr int64_t kExperts{6};
  Buffer<float> places{64};
  int64_t used{0};
  const auto fake = [&](DType dtype, int64_t a, int64_t b, int64_t c = -1) {
    Tensor t{c < 0 ? contiguous(nullptr, dtype, a, b) : contiguous(nullptr, dtype, a, b, c)};
    // Addresses that are never looked at, so far apart that nothing overlaps.
    t.data = reinterpret_cast<void*>(static_cast<uintptr_t>(++used) << 45U);
    return t;
  };
  const auto weights = [&](DType dtype) {
    WeightTensors w;
    w.gate = fake(dtype, kExperts, kWidest, kWidest);
    w.up = fake(dtype, kExperts, kWidest, kWidest);
    w.down = fake(dtype, kExperts, kWidest, kWidest);
    return w;
  };
  const auto group = Group::local(1);
  Buffer<int32_t> tables{schedule_words(*group, 0, kExperts, 1)};
  BackwardArgs a;
  a.schedule = {contiguous(tables.data(), DType::kI32, tables.size()), kExperts, 1, {0}};
  schedule(*group, contiguous(nullptr, DType::kI32, 0, 1), a.schedule);
  a.x = fake(DType::kBf16, 0, kWidest);
  a.dy = fake(DType::kBf16, 0, kWidest);
  a.topk_weights = fake(DType::kF32, 0, 1);
  a.weights = weights(DType::kBf16);
  a.grads = weights(DType::kBf16);
  a.saved = contiguous(places.data(), DType::kU8, 0);
  // A weight has 8,192 x 8,192 tiles, an expert three of them.
  try {
    backward(*group, a);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), kValue) << e.what();
    const std::string said{e.what()};
    const std::string start{"shape: at most 2^30 tasks on a rank wanted, "};
    ASSERT_EQ(said.substr(0, start.size()), start);
    EXPECT_GE(std::stoll(said.substr(start.size())), kExperts * 3 * 8192 * 8192) << said;
  }
  expect_refusal([] { check_tickets((int64_t{1} << 30) + 1); },
                 {kValue, "shape", "at most 2^30 tasks on a rank", "1073741825 given",
                  "split the batch or use more ranks"});
  EXPECT_NO_THROW(check_tickets(int64_t{1} << 30));
}

}  // namespace
}  // namespace monomoe::testing
