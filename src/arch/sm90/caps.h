// What a chip must offer, and the sentence where it does not.
#pragma once

#include <cstdint>
#include <string>

#include "arch/sm90/smem_plan.h"

namespace monomoe::sm90 {

/// Facts of a device, as CUDA gives them.
struct ChipFacts {
  std::string name;
  int32_t major{0};
  int32_t minor{0};
  int64_t smem_bytes{0};  // of a block, at most
  int32_t multiprocessors{0};
};

/// What a device offers, or why it can't be used.
struct Caps {
  bool usable{false};
  std::string reason;  // if not usable: wanted, found
  std::string name;
  int32_t multiprocessors{0};
};

inline Caps judge(const ChipFacts& f) {
  Caps c;
  c.name = f.name;
  c.multiprocessors = f.multiprocessors;
  if (f.major != 9 || f.minor != 0) {
    c.reason = "a Hopper GPU (compute capability 9.0) wanted, " + f.name +
               " with compute capability " + std::to_string(f.major) + "." +
               std::to_string(f.minor) + " found";
  } else if (f.smem_bytes < kSmemBytes) {
    c.reason = std::to_string(kSmemBytes) + " bytes of shared memory a block wanted, " +
               std::to_string(f.smem_bytes) + " of " + f.name + " found";
  } else {
    c.usable = true;
  }
  return c;
}

}  // namespace monomoe::sm90
