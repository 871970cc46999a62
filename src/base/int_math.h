// Integer helpers. Rows and tiles are int32, elements and bytes int64.
#pragma once

#include <cstdint>

#include "base/hd.h"

namespace monomoe {

template <class T>
MONOMOE_HD constexpr T min_of(T a, T b) {
  return b < a ? b : a;
}

template <class T>
MONOMOE_HD constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}

/// Smallest integer >= a / b; a >= 0, b > 0.
template <class T>
MONOMOE_HD constexpr T ceil_div(T a, T b) {
  return static_cast<T>((a + b - 1) / b);
}

/// Smallest multiple of b that is >= a; a >= 0, b > 0.
template <class T>
MONOMOE_HD constexpr T round_up(T a, T b) {
  return static_cast<T>(ceil_div(a, b) * b);
}

}  // namespace monomoe
