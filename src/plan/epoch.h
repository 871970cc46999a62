// How counters are reused between launches without clearing them in between.
#pragma once

#include <cstdint>

#include "base/hd.h"

namespace monomoe {

/// Local counters exist twice. Launch `epoch` counts in one half and clears what the launch before
/// used of the other half, so that launch epoch + 1 finds zeros.
MONOMOE_HD constexpr int32_t counter_half(uint32_t epoch) {
  return static_cast<int32_t>(epoch & 1U);
}

/// Launches after which all flags are renewed: flags that a smaller call does not use would else
/// look raised once they are 2^31 launches old.
constexpr uint32_t kFlagRefresh{1U << 30U};
MONOMOE_HD constexpr bool renews_flags(uint32_t epoch) { return epoch % kFlagRefresh == 0; }

/// Has a flag that holds epochs reached `epoch`? Safe across the wrap at 2^32 as long as the two
/// are less than 2^31 launches apart.
MONOMOE_HD constexpr bool reached(uint32_t flag, uint32_t epoch) {
  return static_cast<int32_t>(flag - epoch) >= 0;
}

}  // namespace monomoe
