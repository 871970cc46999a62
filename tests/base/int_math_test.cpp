#include "base/int_math.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/expect.h"

namespace monomoe {
namespace {

static_assert(ceil_div(7, 2) == 4 && round_up(7, 4) == 8, "usable at compile time");

TEST(IntMath, CeilDivIsTheSmallestCount) {
  for (int32_t a{0}; a < 200; ++a) {
    for (int32_t b{1}; b < 40; ++b) {
      const int32_t n{ceil_div(a, b)};
      ASSERT_GE(n * b, a);
      ASSERT_TRUE(n == 0 ? a == 0 : (n - 1) * b < a) << a << " / " << b;
    }
  }
}

TEST(IntMath, RoundUpIsTheNextMultiple) {
  for (int32_t a{0}; a < 200; ++a) {
    for (int32_t b{1}; b < 40; ++b) {
      const int32_t m{round_up(a, b)};
      ASSERT_EQ(m % b, 0);
      ASSERT_TRUE(m >= a && m - a < b) << a << " to a multiple of " << b;
    }
  }
}

TEST(IntMath, KeepsTheTypeOfItsOperands) {
  constexpr int64_t kBig{int64_t{1} << 40};
  EXPECT_EQ(ceil_div(kBig + 1, int64_t{2}), (kBig >> 1) + 1);
  EXPECT_EQ(round_up<int64_t>(kBig - 1, 4096), kBig);
  EXPECT_EQ(max_of(kBig, int64_t{3}), kBig);
}

TEST(IntMath, MinAndMax) {
  EXPECT_EQ(min_of(2, 3), 2);
  EXPECT_EQ(min_of(3, -2), -2);
  EXPECT_EQ(max_of(2, 3), 3);
  EXPECT_EQ(max_of(std::numeric_limits<int32_t>::min(), 0), 0);
}

TEST(Expect, ThrowsOnlyForABrokenContractAndSaysWhich) {
  EXPECT_NO_THROW(expect(true, "nothing"));
  try {
    expect(false, "rows come in order");
    FAIL() << "no exception";
  } catch (const std::logic_error& e) {
    EXPECT_NE(std::string{e.what()}.find("rows come in order"), std::string::npos);
  }
}

}  // namespace
}  // namespace monomoe
