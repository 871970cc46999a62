#include "task/activation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "task/numerics.h"

namespace monomoe {
namespace {

constexpr float kInf{std::numeric_limits<float>::infinity()};
constexpr float kNan{std::numeric_limits<float>::quiet_NaN()};
constexpr Clamp kNone{kInf};

/// The formula, in double: silu(min(g, limit)) * min(max(u, -limit), limit).
double swiglu_double(double g, double u, double limit) {
  g = std::min(g, limit);
  u = std::clamp(u, -limit, limit);
  return g / (1.0 + std::exp(-g)) * u;
}

double slope(double g, double u, double limit, double dg, double du) {
  return (swiglu_double(g + dg, u + du, limit) - swiglu_double(g - dg, u - du, limit)) /
         (2.0 * (dg + du));
}

SwigluGrad grad(float g, float u, const Clamp& clamp) {
  return swiglu_grad(g, u, clamp, HostSigmoid{});
}

std::vector<float> values() {
  std::vector<float> all;
  for (float v{-20.0F}; v <= 20.0F; v += 0.37F) all.push_back(v);
  return all;
}

TEST(Swiglu, IsSiluOfGateTimesUp) {
  for (const float limit : {kInf, 3.0F}) {
    for (const float g : values()) {
      for (const float u : values()) {
        const double expected{swiglu_double(g, u, limit)};
        const float got{swiglu(g, u, Clamp{limit}, HostSigmoid{})};
        ASSERT_NEAR(got, expected, 1e-6 * std::abs(expected)) << g << ", " << u;
        ASSERT_EQ(got, grad(g, u, Clamp{limit}).act) << "backward computes the same activation";
      }
    }
  }
}

TEST(Swiglu, DerivativeIsTheSlope) {
  constexpr double kStep{1e-5};
  constexpr double kFloatError{4e-6};  // 1 - sigmoid loses bits where sigmoid is near 1
  for (const float limit : {kInf, 2.5F}) {
    for (const float g : values()) {
      for (const float u : values()) {
        const SwigluGrad d{grad(g, u, Clamp{limit})};
        ASSERT_NEAR(d.dgate, slope(g, u, limit, kStep, 0.0),
                    kFloatError * std::max(1.0F, std::abs(u)));
        ASSERT_NEAR(d.dup, slope(g, u, limit, 0.0, kStep),
                    kFloatError * std::max(1.0F, std::abs(g)));
      }
    }
  }
}

TEST(Swiglu, GateIsClampedAboveOnly) {
  const Clamp clamp{1.5F};
  EXPECT_EQ(clamp.gate(1.75F), 1.5F);
  EXPECT_EQ(clamp.gate(1.25F), 1.25F);
  EXPECT_EQ(clamp.gate(-40.0F), -40.0F);
}

TEST(Swiglu, UpIsClampedOnBothSides) {
  const Clamp clamp{1.5F};
  EXPECT_EQ(clamp.up(1.75F), 1.5F);
  EXPECT_EQ(clamp.up(-1.75F), -1.5F);
  EXPECT_EQ(clamp.up(-1.25F), -1.25F);
}

TEST(Swiglu, GradientPassesAtTheLimitAndStopsBehindIt) {
  constexpr float kLimit{1.5F};
  const Clamp clamp{kLimit};
  const float over{std::nextafter(kLimit, kInf)};
  EXPECT_NE(grad(kLimit, 1.0F, clamp).dgate, 0.0F);
  EXPECT_EQ(grad(over, 1.0F, clamp).dgate, 0.0F);
  EXPECT_NE(grad(-over, 1.0F, clamp).dgate, 0.0F) << "gate has no lower limit";
  for (const float sign : {1.0F, -1.0F}) {
    EXPECT_NE(grad(1.0F, sign * kLimit, clamp).dup, 0.0F);
    EXPECT_EQ(grad(1.0F, sign * over, clamp).dup, 0.0F);
  }
}

TEST(Swiglu, ClampedGateStillFeedsTheGradientOfUp) {
  const Clamp clamp{1.5F};
  EXPECT_EQ(grad(9.0F, 1.0F, clamp).dup, grad(1.5F, 1.0F, clamp).dup);
  EXPECT_EQ(grad(1.0F, 9.0F, clamp).dgate, grad(1.0F, 1.5F, clamp).dgate);
}

TEST(Swiglu, NanIsNotClampedAway) {
  for (const Clamp& clamp : {kNone, Clamp{1.0F}}) {
    EXPECT_TRUE(std::isnan(clamp.gate(kNan)));
    EXPECT_TRUE(std::isnan(clamp.up(kNan)));
    EXPECT_TRUE(std::isnan(swiglu(kNan, 1.0F, clamp, HostSigmoid{})));
    EXPECT_TRUE(std::isnan(swiglu(1.0F, kNan, clamp, HostSigmoid{})));
    EXPECT_TRUE(std::isnan(grad(kNan, 1.0F, clamp).dgate));
    EXPECT_TRUE(std::isnan(grad(kNan, 1.0F, clamp).dup));
    EXPECT_TRUE(std::isnan(grad(1.0F, kNan, clamp).dgate));
  }
}

TEST(Swiglu, InfinityIsCutByALimit) {
  EXPECT_EQ(swiglu(kInf, kInf, Clamp{2.0F}, HostSigmoid{}),
            swiglu(2.0F, 2.0F, Clamp{2.0F}, HostSigmoid{}));
}

TEST(Swiglu, LargeNegativeGatesGiveZeroNotNan) {
  for (const float g : {-80.0F, -100.0F, -1e30F}) {
    const SwigluGrad d{grad(g, 3.0F, kNone)};
    EXPECT_LE(std::abs(d.act), 1e-30F) << g;
    EXPECT_LE(std::abs(d.dgate), 1e-30F) << g;
    EXPECT_LE(std::abs(d.dup), 1e-30F) << g;
  }
}

/// A trick that tests with exact sums use: gate 32 and up 1/32 give 1.
TEST(Swiglu, IsExactForGate32) {
  EXPECT_EQ(swiglu(32.0F, 0.03125F, kNone, HostSigmoid{}), 1.0F);
  EXPECT_EQ(grad(32.0F, 0.5F, kNone).dgate, 0.5F);
  EXPECT_EQ(grad(32.0F, 0.5F, kNone).dup, 32.0F);
}

TEST(HostSigmoid, IsWithinTwoUlp) {
  for (float v{-87.0F}; v <= 87.0F; v += 0.0137F) {
    const double expected{1.0 / (1.0 + std::exp(-static_cast<double>(v)))};
    const auto rounded = static_cast<float>(expected);
    const double ulp{static_cast<double>(std::nextafter(rounded, kInf) - rounded)};
    ASSERT_LE(std::abs(static_cast<double>(HostSigmoid{}(v)) - expected), 2.0 * ulp) << v;
  }
}

}  // namespace
}  // namespace monomoe
