// Macros for code that g++ and nvcc both compile.
#pragma once

#ifdef __CUDACC__
#define MONOMOE_HD __host__ __device__
#else
#define MONOMOE_HD
#endif
