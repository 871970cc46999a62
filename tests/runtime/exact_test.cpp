// Inputs for which every fp32 sum is exact: then the order of summation does not matter, and the
// results are those of a naive loop with the same rounding points, bit for bit.
#include <gtest/gtest.h>

#include <ostream>
#include <vector>

#include "support/oracle.h"
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

/// gate is 32 everywhere, where silu(g) = g and its slope is 1, both exactly; up is a multiple of
/// 1/32; router weights are small dyadic numbers, zero and negative ones among them.
Problem exact_problem(Case c) {
  c.integers = true;
  Problem p{c};
  const auto set_gate = [&](Buffer<Bf16>& gate) {
    for (int64_t i{0}; i < gate.size(); ++i) {
      gate[i] = to_bf16(i % c.hidden == 0 ? 32.0F : 0.0F);
    }
  };
  const auto scale_up = [](Buffer<Bf16>& up) {
    for (int64_t i{0}; i < up.size(); ++i) up[i] = to_bf16(to_float(up[i]) / 32.0F);
  };
  for (int64_t t{0}; t < c.tokens; ++t) p.x[t * c.hidden] = to_bf16(1.0F);
  set_gate(p.gate);
  set_gate(p.shared_gate);
  scale_up(p.up);
  scale_up(p.shared_up);
  constexpr float kWeights[]{1.0F, 0.5F, -2.0F, 0.0F, -0.25F};
  for (int64_t i{0}; i < p.topk_weights.size(); ++i) p.topk_weights[i] = kWeights[i % 5];
  // The sigmoid of 0 is exact too.
  for (int64_t h{0}; h < c.hidden; ++h) p.shared_score[h] = to_bf16(0.0F);
  return p;
}

class Exact : public ::testing::TestWithParam<Setting> {};

template <class T>
void expect_equal(const Buffer<T>& got, const std::vector<float>& want, const char* name) {
  for (int64_t i{0}; i < got.size(); ++i) {
    float v{};
    if constexpr (std::is_same_v<T, Bf16>) {
      v = to_float(got[i]);
    } else {
      v = got[i];
    }
    ASSERT_EQ(v, want[static_cast<size_t>(i)]) << name << "[" << i << "]";
  }
}

TEST_P(Exact, IntegerInputsGiveTheSumsThemselves) {
  Problem p{exact_problem(GetParam().c)};
  const auto group = Group::local(GetParam().ranks);
  Config config;
  config.save = GetParam().save;
  const Results r{solve(p, *group, config)};
  const Oracle<float> want{Reference<float, true>{p}.solve()};
  expect_equal(r.y, want.y, "y");
  expect_equal(r.dx, want.dx, "dx");
  expect_equal(r.dtopk_weights, want.dtopk_weights, "dtopk_weights");
  expect_equal(r.gate, want.gate, "gate");
  expect_equal(r.up, want.up, "up");
  expect_equal(r.down, want.down, "down");
  expect_equal(r.shared_gate, want.shared_gate, "shared_gate");
  expect_equal(r.shared_up, want.shared_up, "shared_up");
  expect_equal(r.shared_down, want.shared_down, "shared_down");
  expect_equal(r.shared_score, want.shared_score, "shared_score");
}

std::vector<Setting> settings() {
  const Case shared{.tokens = 40, .shared = 24};
  const Case gated{.tokens = 40, .shared = 24, .score = true};
  return {{"plain", Case{}},
          {"three_ranks", Case{}, 3},
          {"recomputed", Case{.tokens = 90, .inter = 72}, 2, Save::kNone},
          {"skewed", Case{.tokens = 200, .hidden = 24, .inter = 24, .skewed = true}},
          {"duplicates", Case{.tokens = 30, .experts = 2, .top_k = 2, .skip = 0}},
          {"clamped", Case{.limit = 8.0}},
          {"shared", shared, 2},
          {"gated", gated, 1},
          {"gated_three_ranks", gated, 3}};
}

INSTANTIATE_TEST_SUITE_P(Layer, Exact, ::testing::ValuesIn(settings()),
                         [](const auto& p) { return std::string{p.param.name}; });

}  // namespace
}  // namespace monomoe::testing
