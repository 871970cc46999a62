// The CPU backend behind the runtime's interface.
#pragma once

#include "runtime/backend.h"

namespace monomoe {

/// One thread a core.
PlanTraits cpu_traits();

Backend& cpu_backend();

}  // namespace monomoe
