#include "plan/epoch.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace monomoe {
namespace {

constexpr uint32_t kFirstEpochs[]{0U, 1U, 0x7FFFFFFFU, 0x80000000U, 0xFFFFFFFDU};

TEST(Epoch, FlagsAreComparedAcrossTheWrap) {
  for (const uint32_t first : kFirstEpochs) {
    for (uint32_t i{0}; i < 8; ++i) {
      for (uint32_t k{0}; k < 8; ++k) {
        EXPECT_EQ(reached(first + i, first + k), i >= k) << first << " + " << i << ", " << k;
      }
    }
  }
}

TEST(Epoch, FlagsOfOldLaunchesAreNotReached) {
  for (const uint32_t first : kFirstEpochs) {
    EXPECT_FALSE(reached(first, first + 0x7FFFFFFFU));
    EXPECT_TRUE(reached(first + 0x7FFFFFFFU, first));
  }
}

TEST(Epoch, FlagsAreRenewedLongBeforeTheyLookRaised) {
  EXPECT_TRUE(renews_flags(0));
  EXPECT_TRUE(renews_flags(kFlagRefresh));
  EXPECT_FALSE(renews_flags(kFlagRefresh - 1));
  EXPECT_FALSE(renews_flags(1));
  // The oldest flag that a wait can meet: renewed once, and not used until just before the next.
  EXPECT_FALSE(reached(0, 2 * kFlagRefresh - 1));
}

TEST(Epoch, NeighboursUseDifferentHalvesAcrossTheWrap) {
  for (const uint32_t first : kFirstEpochs) {
    for (uint32_t i{0}; i < 8; ++i) {
      EXPECT_NE(counter_half(first + i), counter_half(first + i + 1)) << first << " + " << i;
      EXPECT_EQ(counter_half(first + i), counter_half(first + i + 2)) << first << " + " << i;
    }
  }
}

}  // namespace
}  // namespace monomoe
