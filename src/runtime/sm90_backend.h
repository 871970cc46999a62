// The Hopper backend behind the runtime's interface.
#pragma once

#include "runtime/backend.h"

namespace monomoe {

/// Null if this build has no CUDA part or this machine has no Hopper GPU.
Backend* sm90_backend();

}  // namespace monomoe
