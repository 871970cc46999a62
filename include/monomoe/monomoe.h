// MonoMoE: the public interface. C++20, free of CUDA, torch and Python.
#pragma once

#include "monomoe/config.h"  // IWYU pragma: export
#include "monomoe/error.h"   // IWYU pragma: export
#include "monomoe/group.h"   // IWYU pragma: export
#include "monomoe/layer.h"   // IWYU pragma: export
#include "monomoe/tensor.h"  // IWYU pragma: export

#define MONOMOE_VERSION "0.1.0"
