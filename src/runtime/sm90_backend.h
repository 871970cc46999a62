// The Hopper backend behind the runtime's interface.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/backend.h"

namespace monomoe {

/// Null if this build has no CUDA part or this machine has no Hopper GPU.
Backend* sm90_backend();

/// Why that CUDA device can't be used: wanted, found. Empty if it can.
std::string sm90_refusal(int32_t device);

/// For monomoe::environment().
std::vector<std::pair<std::string, std::string>> sm90_environment();

}  // namespace monomoe
