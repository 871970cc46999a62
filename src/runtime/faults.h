// A fault record -> a sentence.
#pragma once

#include <string>

#include "comm/fault.h"

namespace monomoe {

/// Names the missing ranks, who waited, in which task, for which counter, and the remedy.
std::string describe(const Fault& fault, int32_t ranks);

}  // namespace monomoe
