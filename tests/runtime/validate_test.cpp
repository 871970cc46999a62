// Every refusal of forward and backward, provoked through the public calls: its code, its four
// parts, and that nothing was written.

#include <gtest/gtest.h>

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

constexpr const char* kCheckShape{"check the tensor and its dimensions"};
constexpr const char* kPadWeights{"pad the weights, so that rows are 16 bytes"};
constexpr const char* kWidth{"a multiple of 8 in [8, 1048576]"};
constexpr const char* kTooManyRoutes{"a token can't have more routes than there are experts"};

TEST(ValidCalls, AreNotRefused) {
  ValidCall v;
  EXPECT_NO_THROW(v.run_schedule());
  EXPECT_NO_THROW(v.run_forward());
  EXPECT_NO_THROW(v.run_backward());
  v.accumulate = true;
  EXPECT_NO_THROW(v.run_backward());
}

TEST(RefusesCall, TablesOfAnotherCall) {
  const Sentence foreign{kState, "schedule", "tables of this group, T, E, K and token split",
                         "tables of another call given",
                         "call schedule with this group and these ids"};
  expect_refusals(kBoth, {{[](ValidCall& v) {
                             v.sched.tokens_per_rank = {2, 4};
                           },
                           foreign},
                          {[](ValidCall& v) { v.tables_memory.at<int32_t>(0) = 0; }, foreign},
                          {[](ValidCall& v) {
                             // The header names another K.
                             v.tables_memory.at<int32_t>(4) = 1;
                           },
                           foreign}});
}

TEST(RefusesCall, RoutingSizesThatAreNotLegal) {
  expect_refusals(kBoth, {{[](ValidCall& v) { v.sched.experts = 0; },
                           {kValue, "experts", "a value in [1, 65536]", "0 given",
                            "pass the number of experts of all ranks"}},
                          {[](ValidCall& v) { v.sched.top_k = 4; },
                           {kValue, "top_k", "1 <= K <= E = 3", "4 given", kTooManyRoutes}}});
}

TEST(RefusesCall, XOfTheWrongKind) {
  const auto rows = [](std::string wanted, std::string given, std::string remedy) {
    return Sentence{kValue, "x", std::move(wanted), std::move(given), std::move(remedy)};
  };
  const std::string aligned{"rows at 16-byte aligned addresses"};
  expect_refusals(
      kBoth, {{[](ValidCall& v) { v.x = Tensor{}; }, rows("a tensor", "nothing given", "pass it")},
              {[](ValidCall& v) { v.x.device = kNowhere; }, no_backend("x")},
              {[](ValidCall& v) { v.x.dtype = DType::kF32; },
               {kType, "x", "bfloat16", "float32 given", "convert it with .to(torch.bfloat16)"}},
              {[](ValidCall& v) { v.x.ndim = 3; },
               rows("shape [T, H]", "[6, 16, 0] given", "flatten it to two dimensions")},
              {[](ValidCall& v) { v.x.stride[1] = 2; },
               rows("a contiguous last dimension", "strides [16, 2] given", "pass .contiguous()")},
              {[](ValidCall& v) { shift(v.x, 2); },
               rows(aligned, "a misaligned first element given",
                    "pass .clone() or a view that starts at a multiple of 8 elements")},
              {[](ValidCall& v) { v.x.stride[0] = 20; },
               rows(aligned, "strides [20, 1] given",
                    "pass .contiguous() or pad the rows to a multiple of 8 elements")},
              {[](ValidCall& v) { v.x.stride[0] = 8; },
               rows("rows that do not overlap", "strides [8, 1] given", "pass .contiguous()")},
              {[](ValidCall& v) { v.x.stride[0] = 0; },
               rows("rows that do not overlap", "strides [0, 1] given", "pass .contiguous()")},
              {[](ValidCall& v) { v.x.shape[0] = 5; },
               {kValue, "tokens_per_rank", "counts that add up to T = 5", "6 given",
                "pass the token counts of this call"}}});
}

TEST(RefusesCall, WidthsThatAreNotMultiplesOf8) {
  expect_refusals(kBoth, {{[](ValidCall& v) { v.x.shape[1] = 12; },
                           {kValue, "hidden width H", kWidth, "12 given", kPadWeights}},
                          {[](ValidCall& v) { v.x.shape[1] = 0; },
                           {kValue, "hidden width H", kWidth, "0 given", kPadWeights}},
                          {[](ValidCall& v) { v.weights.gate.shape[1] = 4; },
                           {kValue, "intermediate width I", kWidth, "4 given", kPadWeights}},
                          {[](ValidCall& v) { v.weights.gate.shape[1] = 1 << 21; },
                           {kValue, "intermediate width I", kWidth, "2097152 given", kPadWeights}},
                          {[](ValidCall& v) { v.weights.shared_gate.shape[0] = 20; },
                           {kValue, "shared width Is", kWidth, "20 given", kPadWeights}}});
}

TEST(RefusesCall, GateThatIsNotAStackOfMatrices) {
  expect_refusals(
      kBoth, {{[](ValidCall& v) { v.weights.gate = Tensor{}; },
               {kValue, "weights.gate", "a tensor", "nothing given", "pass it"}},
              {[](ValidCall& v) { v.weights.gate.ndim = 2; },
               {kValue, "weights.gate", "shape [E, I, H]", "[3, 8] given",
                "stack the experts along the first dimension"}},
              {[](ValidCall& v) { v.weights.shared_gate.ndim = 1; },
               {kValue, "weights.shared_gate", "shape [Is, H]", "[24] given", "pass a matrix"}}});
}

TEST(RefusesCall, WeightsOfTheWrongKind) {
  expect_row_checks(kBoth, "weights.up", "[E, I, H]",
                    [](ValidCall& v) -> Tensor& { return v.weights.up; });
  expect_row_checks(kBoth, "weights.down", "[E, H, I]",
                    [](ValidCall& v) -> Tensor& { return v.weights.down; });
  expect_row_checks(kBoth, "weights.shared_up", "[Is, H]",
                    [](ValidCall& v) -> Tensor& { return v.weights.shared_up; });
  expect_row_checks(kBoth, "weights.shared_down", "[H, Is]",
                    [](ValidCall& v) -> Tensor& { return v.weights.shared_down; });
  expect_refusals(
      kBoth,
      {{[](ValidCall& v) { v.weights.gate.shape[0] = 2; },
        {kValue, "weights.gate", "shape [E, I, H] = [3, 8, 16]", "[2, 8, 16] given", kCheckShape}},
       {[](ValidCall& v) { v.weights.gate.dtype = DType::kF16; },
        {kType, "weights.gate", "bfloat16", "float16 given",
         "convert it with .to(torch.bfloat16)"}},
       {[](ValidCall& v) { v.weights.gate.stride[2] = 2; },
        {kValue, "weights.gate", "a contiguous last dimension", "strides [128, 16, 2] given",
         "pass .contiguous()"}},
       {[](ValidCall& v) { v.weights.shared_gate.dtype = DType::kF16; },
        {kType, "weights.shared_gate", "bfloat16", "float16 given",
         "convert it with .to(torch.bfloat16)"}},
       {[](ValidCall& v) { v.weights.shared_score.shape[0] = 8; },
        {kValue, "weights.shared_score", "shape [H] = [16]", "[8] given", kCheckShape}},
       {[](ValidCall& v) { v.weights.shared_score.stride[0] = 2; },
        {kValue, "weights.shared_score", "a contiguous last dimension", "strides [2] given",
         "pass .contiguous()"}}});
}

TEST(RefusesCall, WeightsOnAnotherDevice) {
  expect_refusals(
      kBoth, {{[](ValidCall& v) { v.weights.gate.device = kNowhere; }, no_backend("weights.gate")},
              {[](ValidCall& v) { v.weights.up.device.index = 1; },
               {kType, "weights.up", "a tensor on cpu", "cpu:1 given",
                "move all tensors of a call to one device"}}});
}

TEST(RefusesCall, PartsOfASharedExpert) {
  const Sentence parts{kValue, "weights.shared_gate", "all shared tensors or none", "nothing given",
                       "pass shared_gate, shared_up and shared_down together"};
  expect_refusals(kBoth, {{[](ValidCall& v) { v.weights.shared_gate = Tensor{}; }, parts},
                          {[](ValidCall& v) {
                             v.weights.shared_gate = v.weights.shared_up = Tensor{};
                             v.weights.shared_down = Tensor{};
                           },
                           parts}});
}

TEST(RefusesCall, RouterWeightsOfTheWrongKind) {
  const std::string name{"topk_weights"};
  expect_refusals(
      kBoth, {{[](ValidCall& v) { v.topk_weights = Tensor{}; },
               {kValue, name, "a tensor", "nothing given", "pass it"}},
              {[](ValidCall& v) { v.topk_weights.device = kNowhere; }, no_backend(name)},
              {[](ValidCall& v) { v.topk_weights.dtype = DType::kBf16; },
               {kType, name, "float32", "bfloat16 given", "convert it with .to(torch.float32)"}},
              {[](ValidCall& v) {
                 v.topk_weights.shape = {2, 6};
               },
               {kValue, name, "shape [T, K] = [6, 2]", "[2, 6] given", kCheckShape}},
              {[](ValidCall& v) { shift(v.topk_weights, 2); },
               {kValue, name, "elements at 4-byte aligned addresses",
                "a misaligned first element given", "pass .clone()"}}});
}

TEST(RefusesCall, LimitsThatAreNotPositiveAndFinite) {
  const std::vector<std::pair<double, std::string>> limits{
      {0.0, "0.0"}, {-1.5, "-1.5"}, {kInf, "inf"}, {kNan, "nan"}};
  for (const auto& [limit, given] : limits) {
    expect_refusals(kBoth, {{[l = limit](ValidCall& v) { v.limit = l; },
                             {kValue, "swiglu_limit", "a finite value > 0", given + " given",
                              "pass None for no clamp"}}});
  }
}

TEST(RefusesCall, OptionsOutOfRange) {
  struct Option {
    const char* name;
    std::optional<int64_t> Config::*member;
    int64_t lowest, highest;
    const char* remedy;
  };
  constexpr const char* kPolicy{"None lets the policy choose"};
  constexpr const char* kMovers{"0 leaves all moving to compute workers"};
  const std::vector<Option> options{
      {"fwd_comm_sms", &Config::fwd_comm_sms, 0, 65536, kMovers},
      {"bwd_comm_sms", &Config::bwd_comm_sms, 0, 65536, kMovers},
      {"workers", &Config::workers, 1, 65536, kPolicy},
      {"minibatch_rows", &Config::minibatch_rows, 128, 2 * kBillion, kPolicy},
      {"ring_rows", &Config::ring_rows, 256, 2 * kBillion, kPolicy},
      {"save_rows", &Config::save_rows, 0, 2 * kBillion,
       "rows that do not fit are computed again"}};
  for (const Option& o : options) {
    for (const int64_t value : {o.lowest - 1, o.highest + 1}) {
      const Sentence s{
          kValue, o.name,
          "a value in [" + std::to_string(o.lowest) + ", " + std::to_string(o.highest) + "]",
          std::to_string(value) + " given", o.remedy};
      expect_refusals(kBoth, {{[&o, value](ValidCall& v) { v.config.*o.member = value; }, s}});
      ValidCall v;
      v.config.*o.member = value;
      expect_refusal([&] { (void)saved_bytes(*v.group, v.shape(), v.config); }, s);
      expect_refusal([&] { (void)explain(v.shape(), v.config); }, s);
    }
  }
}

TEST(RefusesCall, OutputsOfTheWrongKind) {
  expect_row_checks(kForward, "y", "[T, H]", [](ValidCall& v) -> Tensor& { return v.y; });
  expect_row_checks(kBackward, "dy", "[T, H]", [](ValidCall& v) -> Tensor& { return v.dy; });
  expect_row_checks(
      kBackward, "dx", "[T, H]", [](ValidCall& v) -> Tensor& { return v.dx; }, true);
  const std::string name{"dtopk_weights"};
  expect_refusals(
      kBackward,
      {{[](ValidCall& v) { v.dtopk_weights.dtype = DType::kBf16; },
        {kType, name, "float32", "bfloat16 given", "convert it with .to(torch.float32)"}},
       {[](ValidCall& v) { v.dtopk_weights.shape[0] = 5; },
        {kValue, name, "shape [T, K] = [6, 2]", "[5, 2] given", kCheckShape}},
       {[](ValidCall& v) { shift(v.dtopk_weights, 1); },
        {kValue, name, "elements at 4-byte aligned addresses", "a misaligned first element given",
         "pass .clone()"}}});
}

TEST(RefusesCall, SavedStateThatDoesNotFit) {
  ValidCall v;
  v.run_schedule();
  v.saved.shape[0] = 0;
  std::string wanted;
  try {
    v.run_forward();
    FAIL() << "no error";
  } catch (const Error& e) {
    wanted = e.what();
    wanted = wanted.substr(wanted.find("at least"));
    wanted = wanted.substr(0, wanted.find(" wanted"));
  }
  const int64_t bytes{std::stoll(wanted.substr(9))};
  EXPECT_LE(bytes, v.saved_memory.size()) << "saved_bytes is a bound";
  EXPECT_EQ(wanted, "at least " + std::to_string(bytes) + " contiguous bytes, 16-byte aligned");
  const std::string remedy{"allocate saved_bytes(group, shape, config) bytes"};
  const std::string size{std::to_string(v.saved_memory.size())};
  expect_refusals(kBoth,
                  {{[&](ValidCall& c) { c.saved = Tensor{}; },
                    {kValue, "saved", "a tensor", "nothing given", "pass it"}},
                   {[&](ValidCall& c) { c.saved.device = kNowhere; }, no_backend("saved")},
                   {[&](ValidCall& c) { c.saved.dtype = DType::kI8; },
                    {kType, "saved", "uint8", "int8 given", "convert it with .to(torch.uint8)"}},
                   {[&](ValidCall& c) { c.saved.shape[0] = bytes - 1; },
                    {kValue, "saved", wanted, "[" + std::to_string(bytes - 1) + "] given", remedy}},
                   {[&](ValidCall& c) { c.saved.ndim = 2; },
                    {kValue, "saved", wanted, "[" + size + ", 0] given", remedy}},
                   {[&](ValidCall& c) { c.saved.stride[0] = 2; },
                    {kValue, "saved", wanted, "[" + size + "] given", remedy}},
                   {[&](ValidCall& c) { shift(c.saved, 8); },
                    {kValue, "saved", wanted, "[" + size + "] given", remedy}}});
  v.saved.shape[0] = bytes;
  EXPECT_NO_THROW(v.run_forward());
}

TEST(RefusesBackward, GradientsOfTheWrongKind) {
  expect_row_checks(
      kBackward, "grads.gate", "[E, I, H]", [](ValidCall& v) -> Tensor& { return v.grads.gate; },
      true);
  expect_row_checks(
      kBackward, "grads.down", "[E, H, I]", [](ValidCall& v) -> Tensor& { return v.grads.down; },
      true);
  expect_row_checks(
      kBackward, "grads.up", "[E, I, H]", [](ValidCall& v) -> Tensor& { return v.grads.up; }, true);
  expect_row_checks(
      kBackward, "grads.shared_gate", "[Is, H]",
      [](ValidCall& v) -> Tensor& { return v.grads.shared_gate; }, true);
  expect_row_checks(
      kBackward, "grads.shared_up", "[Is, H]",
      [](ValidCall& v) -> Tensor& { return v.grads.shared_up; }, true);
  expect_row_checks(
      kBackward, "grads.shared_down", "[H, Is]",
      [](ValidCall& v) -> Tensor& { return v.grads.shared_down; }, true);
  expect_row_checks(
      kBackward, "grads.shared_score", "[H]",
      [](ValidCall& v) -> Tensor& { return v.grads.shared_score; }, true);
}

TEST(RefusesBackward, GradientsOfTheOtherDtype) {
  expect_refusals(
      kBackward,
      {{[](ValidCall& v) { v.config.weight_grad = WeightGrad::kBf16; },
        {kType, "grads.gate", "bfloat16", "float32 given", "convert it with .to(torch.bfloat16)"}},
       {[](ValidCall& v) {
          v.accumulate = true;
          v.config.weight_grad = WeightGrad::kBf16;
          v.grads.down.dtype = DType::kBf16;
        },
        {kType, "accumulate.down", "float32", "bfloat16 given",
         "convert it with .to(torch.float32)"}}});
}

TEST(RefusesBackward, HalfOfAPairOfGradients) {
  expect_refusals(
      kBackward, {{[](ValidCall& v) { v.grads.gate = Tensor{}; },
                   {kValue, "grads.up", "gate and up together or neither", "one of them given",
                    "they come from one product"}},
                  {[](ValidCall& v) { v.grads.shared_up = Tensor{}; },
                   {kValue, "grads.shared_up", "shared_gate and shared_up together or neither",
                    "one of them given", "they come from one product"}},
                  {[](ValidCall& v) {
                     v.accumulate = true;
                     v.grads.up = Tensor{};
                   },
                   {kValue, "accumulate.up", "gate and up together or neither", "one of them given",
                    "they come from one product"}}});
}

TEST(RefusesBackward, GradientsOfWeightsThatTheLayerDoesNotHave) {
  const auto none = [](const std::string& name) {
    return Sentence{kValue, name, "nothing", "a tensor given", "the layer has no such weight"};
  };
  const auto drop_shared = [](ValidCall& v) {
    v.weights.shared_gate = v.weights.shared_up = v.weights.shared_down = Tensor{};
    v.weights.shared_score = Tensor{};
  };
  expect_refusals(kBackward, {{[&](ValidCall& v) { drop_shared(v); }, none("grads.shared_gate")},
                              {[&](ValidCall& v) {
                                 drop_shared(v);
                                 v.grads.shared_gate = v.grads.shared_up = Tensor{};
                               },
                               none("grads.shared_down")},
                              {[](ValidCall& v) { v.weights.shared_score = Tensor{}; },
                               none("grads.shared_score")}});
}

}  // namespace
}  // namespace monomoe::testing
