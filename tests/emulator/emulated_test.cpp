// The Hopper backend, kernels included, on an emulated machine against the CPU backend.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <string>

#include "emulator/kernels.h"
#include "monomoe/error.h"
#include "runtime/testing.h"
#include "support/problem.h"

namespace monomoe {
namespace {

using testing::Case;
using testing::Problem;
using testing::Results;

Results solve_emulated(Case c, int64_t ranks, const Config& config, uint64_t seed) {
  c.device = {DeviceKind::kCuda, 0};
  emulator::set_seed(seed);
  Problem p{c};
  const auto g = Group::local(ranks, {20.0});
  Results r{};
  testing::Step s{testing::start(p, *g, config, &r.y)};
  cudaDeviceSynchronize();
  g->check();
  testing::finish(p, *g, s, &r);
  cudaDeviceSynchronize();
  g->check();
  return r;
}

Results solve_cpu(const Case& c, int64_t ranks, const Config& config) {
  Problem p{c};
  return testing::solve(p, *Group::local(ranks), config);
}

float value(const testing::Buffer<Bf16>& b, int64_t i) { return to_float(b[i]); }
float value(const testing::Buffer<float>& b, int64_t i) { return b[i]; }

/// Largest difference over the largest value.
template <class B>
void expect_near(const B& got, const B& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double worst{0.0};
  double largest{1e-6};
  for (int64_t i{0}; i < got.size(); ++i) {
    const double d{std::fabs(static_cast<double>(value(got, i)) - value(want, i))};
    worst = std::fmax(worst, std::isnan(d) ? INFINITY : d);
    largest = std::fmax(largest, std::fabs(static_cast<double>(value(want, i))));
  }
  EXPECT_LE(worst / largest, 0x1p-7) << what;
}

void expect_near(const Results& got, const Results& want) {
  expect_near(got.y, want.y, "y");
  expect_near(got.dx, want.dx, "dx");
  expect_near(got.dtopk_weights, want.dtopk_weights, "dtopk_weights");
  expect_near(got.gate, want.gate, "gate");
  expect_near(got.up, want.up, "up");
  expect_near(got.down, want.down, "down");
  expect_near(got.shared_gate, want.shared_gate, "shared_gate");
  expect_near(got.shared_up, want.shared_up, "shared_up");
  expect_near(got.shared_down, want.shared_down, "shared_down");
  expect_near(got.shared_score, want.shared_score, "shared_score");
}

const Case kCases[]{
    {.tokens = 150, .hidden = 72, .inter = 80, .experts = 3, .top_k = 2},
    {.tokens = 1, .hidden = 8, .inter = 8, .experts = 1, .top_k = 1, .skip = 0.0},
    {.tokens = 260, .hidden = 136, .inter = 200, .experts = 2, .top_k = 2, .skip = 0.0},
    {.tokens = 90, .hidden = 264, .inter = 72, .experts = 9, .top_k = 3, .shared = 72},
    {.tokens = 130,
     .hidden = 64,
     .inter = 136,
     .experts = 4,
     .top_k = 4,
     .shared = 200,
     .score = true,
     .limit = 0.7},
    {.tokens = 400, .hidden = 64, .inter = 64, .experts = 4, .top_k = 2, .skewed = true},
    {.tokens = 40, .hidden = 2056, .inter = 16, .experts = 3, .top_k = 2},
    {.tokens = 70, .hidden = 16, .inter = 24, .experts = 80, .top_k = 40, .shared = 8},
};

class EmulatedLayer : public ::testing::TestWithParam<int> {};

TEST_P(EmulatedLayer, IsTheCpusForOneRankAndSeveral) {
  const Case& c{kCases[GetParam()]};
  for (const int64_t ranks : {1, 2 + GetParam() % 3}) {
    SCOPED_TRACE("ranks " + std::to_string(ranks));
    expect_near(solve_emulated(c, ranks, {}, 1), solve_cpu(c, ranks, {}));
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, EmulatedLayer,
                         ::testing::Range(0, static_cast<int>(std::size(kCases))));

TEST(Emulated, BitsDoNotDependOnRanksKnobsOrTheOrderOfThreads) {
  for (const Case& c : {kCases[0], kCases[4], kCases[5]}) {
    const Results want{solve_emulated(c, 1, {}, 1)};
    for (uint64_t seed{2}; seed < 6; ++seed) {
      Config k;
      k.workers = seed % 3 == 0 ? 4 : 2;
      k.fwd_comm_sms = static_cast<int64_t>(seed % 3);
      k.bwd_comm_sms = static_cast<int64_t>(seed % 2);
      k.ring_rows = seed % 2 == 0 ? 256 : 512;
      k.minibatch_rows = 128;
      k.save = seed % 3 == 0 ? Save::kNone : seed % 3 == 1 ? Save::kAll : Save::kPreact;
      if (seed % 4 == 0) k.save_rows = 128;
      const int64_t ranks{static_cast<int64_t>(1 + seed % 4)};
      SCOPED_TRACE("seed " + std::to_string(seed) + ", ranks " + std::to_string(ranks));
      const Results got{solve_emulated(c, ranks, k, seed)};
      EXPECT_TRUE(got.same_routed(want));
      expect_near(got, want);
    }
  }
}

TEST(Emulated, IntegersAreExact) {
  Case c{kCases[4]};
  c.integers = true;
  c.limit.reset();
  const Results want{solve_cpu(c, 1, {})};
  EXPECT_TRUE(solve_emulated(c, 1, {}, 3).y == want.y);
}

/// One forward and one backward with the group's hooks set by `disturb`.
template <class Disturb>
std::string error_of(int64_t ranks, const Disturb& disturb) {
  Case c{kCases[0]};
  c.device = {DeviceKind::kCuda, 0};
  Problem p{c};
  const auto g = Group::local(ranks, {2.0});
  Results r{};
  testing::Step s{testing::start(p, *g, {}, &r.y)};
  cudaDeviceSynchronize();
  g->check();
  disturb(*g);
  testing::finish(p, *g, s, &r);
  cudaDeviceSynchronize();
  EXPECT_TRUE(std::isnan(value(r.dx, 0)));
  EXPECT_TRUE(std::isnan(r.gate[0]));
  try {
    g->check();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(EmulatedFaults, ARankThatNeverStartsIsNamedAndTheOthersEnd) {
  const std::string error{error_of(3, [](Group& g) { testing::never_start(g, 1); })};
  EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
}

TEST(EmulatedFaults, CallsThatDifferAreNotMixed) {
  const std::string error{error_of(2, [](Group& g) { testing::falsify(g, 1, testing::kSizes); })};
  EXPECT_NE(error.find("ranks 0 and 1"), std::string::npos) << error;
}

}  // namespace
}  // namespace monomoe
