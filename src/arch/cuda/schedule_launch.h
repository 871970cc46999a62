// What a schedule launch on one rank gets, by value.
#pragma once

#include <cstdint>

#include "arch/cuda/launch.h"
#include "plan/routing.h"

namespace monomoe::cuda {

constexpr int32_t kScheduleThreads{256};

/// A peer's id table of this schedule's parity, and one flag per part.
struct IdHeap {
  int32_t* ids;    // [2][T, K]
  int32_t* flags;  // [parts]
};

/// Device memory of a group's schedules.
struct ScheduleState {
  uint64_t barrier;  // arrivals of blocks so far
  uint32_t epoch;    // of the last finished schedule
  uint32_t left;     // blocks that have ended
};

struct ScheduleLaunch {
  Dims dims;
  TileShape tile;
  TableLayout layout;
  int64_t home_tokens[kMaxRanks + 1];  // prefix sums of tokens over homes
  IdHeap heaps[kMaxRanks];             // unused with R = 1
  const void* ids;                     // own ids, the caller's
  int64_t row, col;                    // element strides
  bool wide;                           // int64
  int32_t* words;                      // the tables
  int32_t* counts;                     // [units, E]
  int32_t parts;                       // of a home
  int32_t warps;  // that share a block's counting (shared memory: warps * E words)
  ScheduleState* state;
  FaultRecord* fault;
  int32_t* abort;
  uint64_t timeout_ns;
};

}  // namespace monomoe::cuda
