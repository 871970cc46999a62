// What a failed wait leaves behind. runtime/faults.cpp makes a sentence of it.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/graph.h"

namespace monomoe {

struct Fault {
  bool waited{true};  // false: the other ranks are done, only the missing ones have work left
  int32_t rank{0};
  int32_t worker{0};
  Line line{Line::kMain};
  Task task{};
  CounterRef counter{};
  int32_t seen{0};
  int32_t wanted{0};
  uint32_t epoch{0};
  bool backward{false};
  double waited_s{0};
  std::vector<int32_t> missing;  // ranks whose launch word is not of this epoch
};

}  // namespace monomoe
