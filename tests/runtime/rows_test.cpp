// What a token's results depend on: its own row, routes and weights, and nothing else, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "support/problem.h"

namespace monomoe::testing {
namespace {

constexpr float kNan{std::numeric_limits<float>::quiet_NaN()};
constexpr int64_t kChanged{17};  // the token that a test changes

const Case kCase{.tokens = 40,
                 .hidden = 72,
                 .inter = 40,
                 .experts = 5,
                 .top_k = 3,
                 .shared = 24,
                 .score = true,
                 .skip = 0.2};

template <class T>
bool same_values(const Buffer<T>& a, const Buffer<T>& b, int64_t begin, int64_t count) {
  return std::memcmp(&a[begin], &b[begin], sizeof(T) * static_cast<size_t>(count)) == 0;
}

/// Results of all tokens but kChanged.
void expect_others_unchanged(const Problem& p, const Results& got, const Results& before) {
  const Case& c{p.c};
  for (int64_t t{0}; t < c.tokens; ++t) {
    if (t == kChanged) continue;
    EXPECT_TRUE(same_values(got.y, before.y, t * c.hidden, c.hidden)) << "y of token " << t;
    EXPECT_TRUE(same_values(got.dx, before.dx, t * c.hidden, c.hidden)) << "dx of token " << t;
    EXPECT_TRUE(same_values(got.dtopk_weights, before.dtopk_weights, t * c.top_k, c.top_k))
        << "dtopk_weights of token " << t;
  }
}

class Rows : public ::testing::TestWithParam<int64_t> {
 protected:
  Problem p{kCase};
  std::shared_ptr<Group> group{Group::local(GetParam())};

  Results run() { return solve(p, *group); }
};

TEST_P(Rows, DependOnTheirOwnTokenOnly) {
  const Results before{run()};
  const Problem other{Case{.tokens = 40, .hidden = 72, .top_k = 3, .seed = 99}};
  for (int64_t h{0}; h < kCase.hidden; ++h) {
    p.x[kChanged * kCase.hidden + h] = other.x[h];
    p.dy[kChanged * kCase.hidden + h] = other.dy[h];
  }
  for (int64_t k{0}; k < kCase.top_k; ++k) {
    p.ids[kChanged * kCase.top_k + k] = static_cast<int32_t>((k + 1) % kCase.experts);
    p.topk_weights[kChanged * kCase.top_k + k] = 0.125F;
  }
  const Results after{run()};
  expect_others_unchanged(p, after, before);
  EXPECT_FALSE(same_values(after.y, before.y, kChanged * kCase.hidden, kCase.hidden));
}

TEST_P(Rows, NanStaysInItsTokenAndItsExperts) {
  for (int64_t t{0}; t < kCase.tokens; ++t) {
    p.ids[t * 3 + 2] = t % 2 == 0 ? 4 : -1;
    for (const int64_t k : {0, 1}) p.ids[t * 3 + k] = static_cast<int32_t>((t + k) % 4);
  }
  const Results before{run()};
  p.x[kChanged * kCase.hidden + 5] = to_bf16(kNan);
  p.dy[kChanged * kCase.hidden + 9] = to_bf16(kNan);
  const Results after{run()};
  expect_others_unchanged(p, after, before);
  EXPECT_TRUE(std::isnan(to_float(after.y[kChanged * kCase.hidden])));
  EXPECT_TRUE(std::isnan(to_float(after.dx[kChanged * kCase.hidden])));
  const std::set<int64_t> touched{kChanged % 4, (kChanged + 1) % 4};
  const int64_t size{kCase.inter * kCase.hidden};
  for (int64_t e{0}; e < kCase.experts; ++e) {
    const bool same{same_values(after.gate, before.gate, e * size, size) &&
                    same_values(after.up, before.up, e * size, size) &&
                    same_values(after.down, before.down, e * size, size)};
    EXPECT_EQ(same, touched.count(e) == 0) << "expert " << e;
  }
}

TEST_P(Rows, WeightsOfSlotsThatAreNotRoutedAreNeverLookedAt) {
  const Results before{run()};
  int64_t skipped{0};
  for (int64_t i{0}; i < p.ids.size(); ++i) {
    if (p.ids[i] >= 0) continue;
    p.topk_weights[i] = kNan;
    ++skipped;
  }
  ASSERT_GT(skipped, 0);
  const Results after{run()};
  EXPECT_TRUE(after.same(before));
  for (int64_t i{0}; i < p.ids.size(); ++i) {
    if (p.ids[i] >= 0) continue;
    EXPECT_EQ(std::bit_cast<uint32_t>(after.dtopk_weights[i]), 0U) << "slot " << i;
  }
}

TEST_P(Rows, WithoutARouteAreZero) {
  Problem plain{Case{.tokens = 30, .top_k = 3}};
  for (int64_t k{0}; k < 3; ++k) {
    plain.ids[kChanged * 3 + k] = -1;
    plain.x[kChanged * plain.c.hidden + k] = to_bf16(kNan);
  }
  const Results r{solve(plain, *group)};
  for (int64_t h{0}; h < plain.c.hidden; ++h) {
    EXPECT_EQ(r.y[kChanged * plain.c.hidden + h].bits, 0) << "+0";
    EXPECT_EQ(r.dx[kChanged * plain.c.hidden + h].bits, 0) << "+0";
  }
}

TEST_P(Rows, BothSlotsOfADuplicateExpertCount) {
  for (int64_t k{0}; k < 3; ++k) p.ids[kChanged * 3 + k] = k == 1 ? -1 : 2;
  p.topk_weights[kChanged * 3] = 0.75F;
  p.topk_weights[kChanged * 3 + 2] = 0.5F;
  const Results twice{run()};
  EXPECT_EQ(twice.dtopk_weights[kChanged * 3], twice.dtopk_weights[kChanged * 3 + 2]);
  p.topk_weights[kChanged * 3] = 1.25F;
  p.ids[kChanged * 3 + 2] = -1;
  const Results once{run()};
  EXPECT_EQ(once.dtopk_weights[kChanged * 3], twice.dtopk_weights[kChanged * 3]);
  for (int64_t h{0}; h < kCase.hidden; ++h) {
    const int64_t at{kChanged * kCase.hidden + h};
    EXPECT_NEAR(to_float(twice.y[at]), to_float(once.y[at]),
                std::abs(to_float(once.y[at])) / 100 + 1e-3);
  }
}

TEST_P(Rows, RouterGradientDoesNotDependOnTheRouterWeight) {
  const Results before{run()};
  for (const float weight : {0.0F, -0.0F, -3.0F, 1e-20F}) {
    for (int64_t i{0}; i < p.topk_weights.size(); ++i) p.topk_weights[i] = weight;
    EXPECT_TRUE(run().dtopk_weights == before.dtopk_weights) << "weight " << weight;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Rows, ::testing::Values(1, 3),
                         [](const auto& p) { return "R" + std::to_string(p.param); });

}  // namespace
}  // namespace monomoe::testing
