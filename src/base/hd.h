// Macros for code that g++ and nvcc both compile.
#pragma once

#ifdef __CUDACC__
#define MONOMOE_HD __host__ __device__
/// A loop that stays one: roles run side by side, and cold instructions come from L2.
#define MONOMOE_ROLLED _Pragma("unroll 1")
#else
#define MONOMOE_HD
#define MONOMOE_ROLLED
#endif
