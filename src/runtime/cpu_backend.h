// The CPU backend behind the runtime's interface.
#pragma once

#include "runtime/backend.h"

namespace monomoe {

Backend& cpu_backend();

}  // namespace monomoe
