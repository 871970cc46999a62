// The whole layer through the public interface: against float64, and bit for bit under every
// circumstance that must not matter.
#include <gtest/gtest.h>

#include <ostream>

#include "runtime/testing.h"
#include "support/oracle.h"
#include "support/problem.h"

namespace monomoe::testing {
namespace {

std::string name_of_case(const Case& c) {
  std::string s{"T" + std::to_string(c.tokens) + "_H" + std::to_string(c.hidden) + "_I" +
                std::to_string(c.inter) + "_E" + std::to_string(c.experts) + "_K" +
                std::to_string(c.top_k)};
  if (c.shared > 0) s += "_S" + std::to_string(c.shared) + (c.score ? "_gated" : "");
  if (c.limit) s += "_clamp";
  if (c.integers) s += "_integers";
  if (c.skewed) s += "_skewed";
  return s;
}

std::vector<Case> shapes() {
  std::vector<Case> all;
  const auto add = [&all](Case c) {
    c.seed = all.size() + 1;
    all.push_back(c);
  };
  add({});
  add({.tokens = 0});
  add({.tokens = 1, .skip = 0});
  add({.tokens = 1, .skip = 1});
  add({.tokens = 257, .hidden = 72, .inter = 136, .experts = 3, .top_k = 3});
  add({.tokens = 400, .hidden = 40, .inter = 200, .experts = 2, .top_k = 1, .skewed = true});
  add({.tokens = 65, .hidden = 136, .inter = 8, .experts = 9, .top_k = 4});
  add({.tokens = 50, .hidden = 8, .inter = 264, .experts = 17, .top_k = 6, .skip = 0.5});
  add({.tokens = 130, .shared = 48});
  add({.tokens = 130, .shared = 136, .score = true});
  add({.tokens = 0, .shared = 16, .score = true});
  add({.tokens = 40, .shared = 24, .score = true, .limit = 0.5});
  add({.tokens = 40, .limit = 1.0});
  add({.tokens = 300, .experts = 1, .top_k = 1, .skip = 0});
  return all;
}

class LayerShapes : public ::testing::TestWithParam<Case> {};

TEST_P(LayerShapes, MatchFloat64ByTheErrorRule) {
  Problem p{GetParam()};
  const auto group = Group::local(1);
  const Results r{solve(p, *group)};
  const Oracle<double> truth{Reference<double, false>{p}.solve()};
  const Oracle<float> twin{Reference<float, true>{p}.solve()};
  constexpr double kBf16Floor{1.0 / 512};
  constexpr double kF32Floor{1.0 / 65536};
  const auto bf16 = [](const Buffer<Bf16>& b) {
    return [&b](size_t i) { return static_cast<double>(to_float(b[static_cast<int64_t>(i)])); };
  };
  const auto f32 = [](const Buffer<float>& b) {
    return [&b](size_t i) { return static_cast<double>(b[static_cast<int64_t>(i)]); };
  };
  EXPECT_LE(error_ratio(bf16(r.y), twin.y, truth.y, kBf16Floor), 1);
  EXPECT_LE(error_ratio(bf16(r.dx), twin.dx, truth.dx, kBf16Floor), 1);
  EXPECT_LE(error_ratio(f32(r.dtopk_weights), twin.dtopk_weights, truth.dtopk_weights, kF32Floor),
            1);
  EXPECT_LE(error_ratio(f32(r.gate), twin.gate, truth.gate, kF32Floor), 1);
  EXPECT_LE(error_ratio(f32(r.up), twin.up, truth.up, kF32Floor), 1);
  EXPECT_LE(error_ratio(f32(r.down), twin.down, truth.down, kF32Floor), 1);
  if (p.c.shared == 0) return;
  EXPECT_LE(error_ratio(f32(r.shared_gate), twin.shared_gate, truth.shared_gate, kF32Floor), 1);
  EXPECT_LE(error_ratio(f32(r.shared_up), twin.shared_up, truth.shared_up, kF32Floor), 1);
  EXPECT_LE(error_ratio(f32(r.shared_down), twin.shared_down, truth.shared_down, kF32Floor), 1);
  if (!p.c.score) return;
  EXPECT_LE(error_ratio(f32(r.shared_score), twin.shared_score, truth.shared_score, kF32Floor), 1);
}

TEST_P(LayerShapes, HaveTheSameBitsForEveryNumberOfRanks) {
  Problem p{GetParam()};
  const auto one = Group::local(1);
  const Results expected{solve(p, *one)};
  for (const int64_t ranks : {2, 3, 5, 8}) {
    const auto group = Group::local(ranks);
    EXPECT_TRUE(solve(p, *group).same_routed(expected)) << ranks << " ranks";
  }
}

TEST_P(LayerShapes, HaveTheSameBitsForEveryKnob) {
  Problem p{GetParam()};
  const auto group = Group::local(2);
  const Results expected{solve(p, *group)};
  Config tight;
  tight.ring_rows = 256;
  tight.minibatch_rows = 128;
  for (const Save save : {Save::kAll, Save::kPreact, Save::kNone}) {
    for (const int64_t rows : {-1, 0, 128}) {
      for (Config c : {Config{}, tight}) {
        c.save = save;
        if (rows >= 0) c.save_rows = rows;
        c.workers = 3;
        EXPECT_TRUE(solve(p, *group, c).same(expected))
            << "save " << static_cast<int>(save) << ", save_rows " << rows << ", ring "
            << c.ring_rows.value_or(-1);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layer, LayerShapes, ::testing::ValuesIn(shapes()), [](const auto& p) {
  return name_of_case(p.param) + "_" + std::to_string(p.index);
});

}  // namespace
}  // namespace monomoe::testing
