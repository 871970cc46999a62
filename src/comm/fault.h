// What a failed wait leaves behind. runtime/faults.cpp makes a sentence of it.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/sym_heap.h"
#include "plan/graph.h"

namespace monomoe {

enum class FaultReason : uint8_t {
  kWait,    // a wait expired
  kIdle,    // nobody waits: only the missing ranks have work left
  kCalls,   // a rank is in another call
  kIds,     // schedule: the ids of a rank did not come
  kBlocks,  // schedule: blocks of the launch did not start
};

struct Fault {
  FaultReason reason{FaultReason::kWait};
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

  // kCalls: what the two ranks have said they do.
  int32_t peer{0};
  LaunchWord own{};
  LaunchWord other{};
};

}  // namespace monomoe
