// Any legal strides give the same bits as contiguous tensors, and no byte beside an element of an
// output is written.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "support/guarded.h"
#include "support/problem.h"

namespace monomoe::testing {
namespace {

struct Setting {
  const char* name;
  Case c;
  int64_t ranks{1};
  Save save{Save::kPreact};
};

void PrintTo(const Setting& s, std::ostream* out) { *out << s.name; }

std::vector<Setting> settings() {
  const Case gated{.tokens = 37, .hidden = 72, .inter = 40, .shared = 24, .score = true};
  return {{"plain", {.tokens = 33, .hidden = 64, .inter = 40}},
          {"one_token_narrowest", {.tokens = 1, .hidden = 8, .inter = 8, .experts = 2}},
          {"no_tokens", {.tokens = 0, .shared = 16, .score = true}},
          {"shared_gated", gated},
          {"three_ranks", gated, 3},
          {"three_ranks_recomputed", gated, 3, Save::kNone},
          {"two_tiles_wide", {.tokens = 140, .hidden = 136, .inter = 200, .skewed = true}, 2}};
}

/// A strided copy of a contiguous tensor.
template <class T>
Guarded strided(const Buffer<T>& from, DType dtype, const std::vector<int64_t>& shape,
                std::vector<int64_t> strides) {
  Guarded g{dtype, shape, std::move(strides)};
  for (int64_t i{0}; i < from.size(); ++i) g.at<T>(i) = from[i];
  return g;
}
template <class T>
Guarded strided(const Buffer<T>& from, DType dtype, const std::vector<int64_t>& shape) {
  return strided(from, dtype, shape, strides_with_gap(shape, 16));
}

template <class T>
void expect_same(Guarded& got, const Buffer<T>& expected, const char* name) {
  EXPECT_TRUE(got.intact()) << name << ": a byte that is no element was written";
  for (int64_t i{0}; i < expected.size(); ++i) {
    ASSERT_EQ(std::memcmp(&got.at<T>(i), &expected[i], sizeof(T)), 0) << name << "[" << i << "]";
  }
}

/// Inputs with gaps between rows, gate and up as two views of one tensor, transposed router
/// weights, int64 ids in the columns of a wider matrix.
struct StridedInputs {
  Guarded x, dy, gate_up, down, shared_gate_up, shared_down, shared_score, topk_weights, ids;

  explicit StridedInputs(Problem& p) {
    const Case& c{p.c};
    x = strided(p.x, DType::kBf16, {c.tokens, c.hidden});
    dy = strided(p.dy, DType::kBf16, {c.tokens, c.hidden});
    down = strided(p.down, DType::kBf16, {c.experts, c.hidden, c.inter});
    gate_up = pair(p.gate, p.up, c.experts, c.inter, c.hidden);
    shared_gate_up = pair(p.shared_gate, p.shared_up, 1, c.shared, c.hidden);
    shared_down = strided(p.shared_down, DType::kBf16, {c.hidden, c.shared});
    shared_score = strided(p.shared_score, DType::kBf16, {c.hidden}, {1});
    topk_weights = strided(p.topk_weights, DType::kF32, {c.tokens, c.top_k}, {1, c.tokens + 5});
    ids = Guarded{DType::kI64, {c.tokens, c.top_k}, std::vector<int64_t>{3 * c.top_k + 1, 3}};
    for (int64_t i{0}; i < p.ids.size(); ++i) ids.at<int64_t>(i) = p.ids[i];
  }

  static Guarded pair(const Buffer<Bf16>& gate, const Buffer<Bf16>& up, int64_t experts,
                      int64_t inter, int64_t hidden) {
    Guarded g{DType::kBf16, {experts, 2, inter, hidden}};
    const int64_t size{inter * hidden};
    for (int64_t i{0}; i < experts * size; ++i) {
      const int64_t at{i / size * 2 * size + i % size};
      g.at<Bf16>(at) = gate[i];
      g.at<Bf16>(at + size) = up[i];
    }
    return g;
  }

  /// Gate (0) or up (1) of all experts, of the shared expert.
  static Tensor experts_half(Guarded& whole, int64_t which) {
    Tensor t{whole.tensor()};
    t.data = static_cast<Bf16*>(t.data) + which * t.stride[1];
    t.ndim = 3;
    t.shape = {t.shape[0], t.shape[2], t.shape[3]};
    t.stride = {t.stride[0], t.stride[2], t.stride[3]};
    return t;
  }
  static Tensor matrix_half(Guarded& whole, int64_t which) {
    Tensor t{experts_half(whole, which)};
    t.ndim = 2;
    t.shape = {t.shape[1], t.shape[2]};
    t.stride = {t.stride[1], t.stride[2]};
    return t;
  }

  WeightTensors weights(const Case& c) {
    WeightTensors w;
    w.gate = experts_half(gate_up, 0);
    w.up = experts_half(gate_up, 1);
    w.down = down.tensor();
    if (c.shared == 0) return w;
    w.shared_gate = matrix_half(shared_gate_up, 0);
    w.shared_up = matrix_half(shared_gate_up, 1);
    w.shared_down = shared_down.tensor();
    if (c.score) w.shared_score = shared_score.tensor();
    return w;
  }
};

/// Weight gradients in one dtype, every one with gaps.
struct StridedGrads {
  Guarded gate, up, down, shared_gate, shared_up, shared_down, shared_score;

  StridedGrads(const Case& c, DType dtype)
      : gate{dtype, {c.experts, c.inter, c.hidden}, 8},
        up{dtype, {c.experts, c.inter, c.hidden}, 16},
        down{dtype, {c.experts, c.hidden, c.inter}, 24},
        shared_gate{dtype, {c.shared, c.hidden}, 8},
        shared_up{dtype, {c.shared, c.hidden}, 16},
        shared_down{dtype, {c.hidden, c.shared}, 24},
        shared_score{dtype, {c.hidden}} {}

  WeightTensors tensors(const Case& c) {
    WeightTensors w;
    w.gate = gate.tensor();
    w.up = up.tensor();
    w.down = down.tensor();
    if (c.shared == 0) return w;
    w.shared_gate = shared_gate.tensor();
    w.shared_up = shared_up.tensor();
    w.shared_down = shared_down.tensor();
    if (c.score) w.shared_score = shared_score.tensor();
    return w;
  }

  /// Calls f(gradient, contiguous fp32 gradient, name) for each that exists.
  template <class F>
  void each(const Case& c, Results& r, const F& f) {
    f(gate, r.gate, "gate");
    f(up, r.up, "up");
    f(down, r.down, "down");
    if (c.shared == 0) return;
    f(shared_gate, r.shared_gate, "shared_gate");
    f(shared_up, r.shared_up, "shared_up");
    f(shared_down, r.shared_down, "shared_down");
    if (c.score) f(shared_score, r.shared_score, "shared_score");
  }
};

class Guards : public ::testing::TestWithParam<Setting> {
 protected:
  Case c{GetParam().c};
  Problem problem{c};
  std::shared_ptr<Group> group{Group::local(GetParam().ranks)};
  StridedInputs inputs{problem};
  Results expected{solve(problem, *group, config())};

  static Config config() {
    Config config;
    config.save = GetParam().save;
    config.workers = 2;
    return config;
  }

  /// schedule and forward on strided tensors; what both write is checked.
  ForwardArgs forward_strided() {
    const int64_t words{schedule_words(*group, c.tokens, c.experts, c.top_k)};
    tables = Guarded{DType::kI32, {words}};
    ForwardArgs a;
    a.schedule = {tables.tensor(), c.experts, c.top_k, split_tokens(c.tokens, group->ranks())};
    schedule(*group, inputs.ids.tensor(), a.schedule);
    EXPECT_TRUE(tables.intact());
    y = Guarded{DType::kBf16, {c.tokens, c.hidden}, 24};
    saved = Guarded{
        DType::kU8,
        {saved_bytes(*group,
                     {c.tokens, c.hidden, c.inter, c.experts, c.top_k, c.shared, group->ranks()},
                     config())}};
    a.x = inputs.x.tensor();
    a.topk_weights = inputs.topk_weights.tensor();
    a.weights = inputs.weights(c);
    a.config = config();
    a.y = y.tensor();
    a.saved = saved.tensor();
    forward(*group, a);
    EXPECT_TRUE(saved.intact());
    expect_same(y, expected.y, "y");
    return a;
  }

  /// Backward of it into `grads`; saved state and inputs must stay as they are.
  void backward_strided(const ForwardArgs& f, StridedGrads& grads, WeightGrad dtype,
                        bool accumulate) {
    dx = Guarded{DType::kBf16, {c.tokens, c.hidden}, 8};
    dtopk_weights =
        Guarded{DType::kF32, {c.tokens, c.top_k}, std::vector<int64_t>{2, 2 * c.tokens + 3}};
    const std::vector<std::byte> kept{saved.bytes()};
    BackwardArgs a;
    a.dy = inputs.dy.tensor();
    a.x = f.x;
    a.topk_weights = f.topk_weights;
    a.weights = f.weights;
    a.schedule = f.schedule;
    a.config = f.config;
    a.config.weight_grad = dtype;
    a.saved = f.saved;
    a.dx = dx.tensor();
    a.dtopk_weights = dtopk_weights.tensor();
    a.grads = grads.tensors(c);
    a.accumulate = accumulate;
    backward(*group, a);
    EXPECT_EQ(saved.bytes(), kept) << "saved state is only read";
    expect_same(dx, expected.dx, "dx");
    expect_same(dtopk_weights, expected.dtopk_weights, "dtopk_weights");
  }

  Guarded tables, y, saved, dx, dtopk_weights;
};

TEST_P(Guards, StayIntactWithFp32Gradients) {
  const ForwardArgs f{forward_strided()};
  StridedGrads grads{c, DType::kF32};
  backward_strided(f, grads, WeightGrad::kF32, false);
  grads.each(c, expected, [](Guarded& got, const Buffer<float>& want, const char* name) {
    expect_same(got, want, name);
  });
}

TEST_P(Guards, StayIntactWithBf16GradientsWhichAreTheFp32OnesRounded) {
  const ForwardArgs f{forward_strided()};
  StridedGrads grads{c, DType::kBf16};
  backward_strided(f, grads, WeightGrad::kBf16, false);
  grads.each(c, expected, [](Guarded& got, const Buffer<float>& want, const char* name) {
    Buffer<Bf16> rounded{want.size()};
    for (int64_t i{0}; i < want.size(); ++i) rounded[i] = to_bf16(want[i]);
    expect_same(got, rounded, name);
  });
}

TEST_P(Guards, StayIntactWhenAccumulating) {
  const ForwardArgs f{forward_strided()};
  StridedGrads grads{c, DType::kF32};
  const auto start = [](int64_t i) { return static_cast<float>(i % 7) - 3.0F; };
  grads.each(c, expected, [&](Guarded& g, const Buffer<float>& want, const char*) {
    for (int64_t i{0}; i < want.size(); ++i) g.at<float>(i) = start(i);
  });
  backward_strided(f, grads, WeightGrad::kBf16, true);
  grads.each(c, expected, [&](Guarded& got, const Buffer<float>& want, const char* name) {
    Buffer<float> sum{want.size()};
    for (int64_t i{0}; i < want.size(); ++i) sum[i] = start(i) + want[i];
    expect_same(got, sum, name);
  });
}

TEST_P(Guards, InputsAreNeverWritten) {
  const auto all = [this] {
    std::vector<std::vector<std::byte>> bytes;
    for (Guarded* g :
         {&inputs.x, &inputs.dy, &inputs.gate_up, &inputs.down, &inputs.shared_gate_up,
          &inputs.shared_down, &inputs.shared_score, &inputs.topk_weights, &inputs.ids}) {
      bytes.push_back(g->bytes());
    }
    return bytes;
  };
  const auto before = all();
  const ForwardArgs f{forward_strided()};
  const std::vector<std::byte> tables_before{tables.bytes()};
  StridedGrads grads{c, DType::kF32};
  backward_strided(f, grads, WeightGrad::kF32, false);
  EXPECT_EQ(all(), before);
  EXPECT_EQ(tables.bytes(), tables_before);
}

INSTANTIATE_TEST_SUITE_P(Layer, Guards, ::testing::ValuesIn(settings()),
                         [](const auto& p) { return std::string{p.param.name}; });

TEST(AbsentOutputs, LeaveTheOthersAsTheyAre) {
  Problem p{Case{.tokens = 40, .shared = 24, .score = true}};
  const auto group = Group::local(2);
  Results all;
  Step s{start(p, *group, {}, &all.y)};
  finish(p, *group, s, &all);
  BackwardArgs a{backward_inputs(p, s)};
  backward(*group, a);  // nothing is asked for: nothing is written, and no peer is kept waiting
  Guarded dx{DType::kBf16, {p.c.tokens, p.c.hidden}};
  a.dx = dx.tensor();
  backward(*group, a);
  expect_same(dx, all.dx, "dx alone");
  a.dx = Tensor{};
  Guarded down{DType::kF32, {p.c.experts, p.c.hidden, p.c.inter}};
  a.grads.down = down.tensor();
  backward(*group, a);
  expect_same(down, all.down, "down alone");
  a.grads.down = Tensor{};
  Guarded score{DType::kF32, {p.c.hidden}};
  a.grads.shared_score = score.tensor();
  backward(*group, a);
  expect_same(score, all.shared_score, "shared_score alone");
}

}  // namespace
}  // namespace monomoe::testing
