// Every counter of a launch: who owns it, what one step means. docs/memory_model.md has a row each.
#pragma once

#include <cstdint>

namespace monomoe {

enum class Counter : uint8_t {
  // Local to a rank, one per row tile; zero at launch.
  kRowsReady,   // dispatch tasks of the tile that are done
  kGuDone,      // gate_up column tiles done
  kDownDone,    // down column tiles done
  kDdDone,      // dgrad_down column tiles done
  kDgDone,      // dgrad_gate_up column tiles done
  kRowsPushed,  // backward: 1 once the router partials of the tile were summed and pushed
  kWgradDone,   // wgrad tiles of the chunk that begins at this row tile
  // Local to a rank, one per token tile of the shared expert.
  kSharedGuDone,
  kSharedDownDone,
  kSharedScoreDone,
  kSharedDdDone,
  kSharedDgDone,
  kSharedDscoreDone,
  // Local to a rank, single values.
  kSharedDdAll,      // dgrad_down tiles of the shared expert, all token tiles together
  kSharedDscoreAll,  // dscore tasks done
  // Local to a rank, one per wgrad tile.
  kSpill,        // chunk passes finished by this tile of the chunked experts, in their order
  kSharedChain,  // at rank 0 of a local group: ranks that have added their shared gradient
  // In the symmetric heap: written by peers.
  kArrival,    // rows pushed to the slots of a token block; zeroed by the stage task
  kStageFlag,  // holds the epoch whose stage chunk is complete
};
constexpr int32_t kNumCounters{static_cast<int32_t>(Counter::kStageFlag) + 1};

constexpr const char* name_of(Counter c) {
  constexpr const char* kNames[kNumCounters]{
      "rows_ready",         "gate_up_done",           "down_done",
      "dgrad_down_done",    "dgrad_gate_up_done",     "rows_pushed",
      "wgrad_done",         "shared_gate_up_done",    "shared_down_done",
      "shared_score_done",  "shared_dgrad_down_done", "shared_dgrad_gate_up_done",
      "shared_dscore_done", "shared_dgrad_down_all",  "shared_dscore_all",
      "wgrad_spill",        "shared_chain",           "arrival",
      "stage_flag"};
  return kNames[static_cast<int32_t>(c)];
}

/// Words in front of the local counters, zero at launch: what persistent workers share.
enum class LaunchCounter : uint8_t {
  kMainTicket,
  kMoveTicket,
  kCombineTicket,
  kArrived,  // blocks that have begun: the order in which roles are given out
  kLeft,     // blocks that have ended
};
constexpr int32_t kLaunchCounterWords{8};

/// One counter: whose, which, which element.
struct CounterRef {
  Counter id;
  int32_t rank;
  int32_t index;
};

}  // namespace monomoe
