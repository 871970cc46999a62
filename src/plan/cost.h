// Work of a call: what bench, policy and explain count.
#pragma once

#include <cstdint>

namespace monomoe {

struct Cost {
  int64_t flops{0};       // padding and recomputation not counted
  int64_t read_bytes{0};  // each operand once
  int64_t write_bytes{0};
};

/// rows = routed rows (T * K without -1 routes).
constexpr Cost forward_cost(int64_t tokens, int64_t rows, int64_t hidden, int64_t inter,
                            int64_t experts, int64_t shared) {
  Cost c{};
  c.flops = 6 * hidden * (rows * inter + tokens * shared);
  const int64_t weights{3 * hidden * (experts * inter + shared)};
  const int64_t act{rows * inter + tokens * shared};
  c.read_bytes = 2 * (rows * hidden + weights + act + rows * hidden);
  c.write_bytes = 2 * (rows * hidden + 3 * act + rows * hidden + tokens * hidden);
  return c;
}

constexpr Cost backward_cost(int64_t tokens, int64_t rows, int64_t hidden, int64_t inter,
                             int64_t experts, int64_t shared) {
  Cost c{};
  c.flops = 12 * hidden * (rows * inter + tokens * shared);
  const int64_t weights{3 * hidden * (experts * inter + shared)};
  const int64_t act{rows * inter + tokens * shared};
  c.read_bytes = 2 * (4 * rows * hidden + weights + 2 * act + 5 * act + rows * hidden);
  c.write_bytes = 2 * (2 * rows * hidden + 3 * act + rows * hidden + tokens * hidden + weights);
  return c;
}

}  // namespace monomoe
