// What a schedule launch on one rank gets, by value.
#pragma once

#include <cstdint>

#include "arch/cuda/launch.h"
#include "plan/routing.h"

namespace monomoe::cuda {

constexpr int32_t kScheduleThreads{256};

/// A rank's id table of this schedule's parity, one flag per part, and its abort word.
struct IdHeap {
  int32_t* ids;    // [2][T, K], unused with R = 1
  int32_t* flags;  // [parts], unused with R = 1
  int32_t* abort;
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
  IdHeap heaps[kMaxRanks];
  const void* ids;   // own ids, the caller's
  int64_t row, col;  // element strides
  bool wide;         // int64
  int32_t* words;    // the tables
  int32_t* counts;   // [units, E]
  int32_t parts;     // of a home
  int32_t warps;     // that share a block's counting (shared memory: warps * E words)
  int32_t* scratch;  // instead of shared memory: `scratch_words` of each block; null: not needed
  int64_t scratch_words;
  ScheduleState* state;
  FaultRecord* fault;
  BadIdRecord* bad_id;
  uint64_t timeout_ns;
  uint32_t pause_us[kNumPauses];  // tests
};

}  // namespace monomoe::cuda
