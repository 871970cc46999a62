// Which chips the Hopper backend takes, and what it says of others.
#include "arch/sm90/caps.h"

#include <gtest/gtest.h>

namespace monomoe::sm90 {
namespace {

constexpr int64_t kHopperSmem{232448};

TEST(Caps, HopperIsUsable) {
  const Caps c{judge({"NVIDIA H200", 9, 0, kHopperSmem, 132})};
  EXPECT_TRUE(c.usable);
  EXPECT_TRUE(c.reason.empty());
  EXPECT_EQ(c.name, "NVIDIA H200");
  EXPECT_EQ(c.multiprocessors, 132);
}

TEST(Caps, AnotherChipIsNamedWithWhatIsWanted) {
  for (const auto& [major, minor] : {std::pair{8, 0}, std::pair{8, 9}, std::pair{10, 0}}) {
    const Caps c{judge({"NVIDIA X", major, minor, kHopperSmem, 100})};
    EXPECT_FALSE(c.usable);
    EXPECT_EQ(c.reason,
              "a Hopper GPU (compute capability 9.0) wanted, NVIDIA X with compute "
              "capability " +
                  std::to_string(major) + "." + std::to_string(minor) + " found");
  }
}

TEST(Caps, TooLittleSharedMemorySaysHowMuchIsWanted) {
  EXPECT_TRUE(judge({"NVIDIA X", 9, 0, kSmemBytes, 132}).usable);
  const Caps c{judge({"NVIDIA X", 9, 0, kSmemBytes - 1, 132})};
  EXPECT_FALSE(c.usable);
  EXPECT_EQ(c.reason, std::to_string(kSmemBytes) + " bytes of shared memory a block wanted, " +
                          std::to_string(kSmemBytes - 1) + " of NVIDIA X found");
}

}  // namespace
}  // namespace monomoe::sm90
