// The product's kernels on the emulated machine, behind the CUDA interface that backend.cpp uses.
#pragma once

#include <cstdint>

namespace emulator {

/// The next launches run in another order.
void set_seed(uint64_t seed);

}  // namespace emulator
