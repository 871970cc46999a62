// What a launch on one rank gets, by value. Plain data: host code fills it in, kernels read it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/fault.h"
#include "comm/sym_heap.h"
#include "plan/graph.h"
#include "plan/workspace.h"
#include "task/operands.h"

namespace monomoe::cuda {

/// Tensor maps of the operands, all three-dimensional, boxes of 64 x 64 (tall: 64 columns x 128
/// rows, one copy instead of two for a full tile).
enum class Map : uint8_t {
  kXRing,   // {H, ring rows}
  kXSaved,  // {H, saved rows}
  kAct,     // {I, ring rows}
  kGate,    // {H, I, L}
  kUp,      // {H, I, L}
  kDown,    // {I, H, L}
  kX,       // {H, T} the caller's
  kSharedAct,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  // Backward only.
  kDyRing,      // {H, ring rows}
  kGrad,        // {I, ring rows, 2}
  kDy,          // {H, T} the caller's
  kSharedGrad,  // {Is, T, 2}
};
constexpr int32_t kNumMaps{static_cast<int32_t>(Map::kSharedGrad) + 1};

/// A CUtensorMap without the CUDA headers; backend.cpp encodes it.
struct alignas(128) TensorMap {
  uint64_t words[16];
};

/// Ranks of a group on GPUs; their heaps travel with the launch.
constexpr int32_t kMaxRanks{64};

/// A peer's heap, regions resolved.
struct Heap {
  Bf16* x_stage;
  Bf16* dy_stage;
  float* weight_stage;
  Bf16* slots;
  float* slot_scalars;
  HeapView view;
};

/// An allocation of stage flags.
struct FlagArray {
  int32_t* flags;
  int64_t count;
};
/// A rank's flags start at half a million and more than double when they grow.
constexpr int32_t kMaxFlagArrays{16};

/// Of a rank, for the group's life: one epoch a launch. The arrays are those that some launch may
/// still name (captured graphs go on using allocations that later calls have outgrown).
struct RankState {
  uint32_t epoch;  // of the last finished launch
  int32_t num_arrays;
  FlagArray arrays[kMaxFlagArrays];
};

/// Of an allocation of counters. It has a half of its own instead of the epoch's parity, since
/// captured graphs go on using allocations that later calls have outgrown.
struct CounterState {
  int32_t half;       // the next launch's
  int32_t extent[2];  // words used in each half
};

/// Host-mapped: what a launch that gave up leaves behind. `set` is written last.
struct FaultRecord {
  int32_t set;     // 0 free, 1 being written, 2 complete
  int32_t reason;  // FaultReason
  int32_t rank, worker, line, kind, row, col;
  int32_t counter, counter_rank, counter_index, seen, wanted;
  int32_t backward;
  uint32_t epoch;
  int32_t peer;           // kCalls, kIds: whose word or ids
  LaunchWord own, other;  // kCalls
  int32_t num_words;      // launch words whose epochs follow
  uint32_t epochs[kMaxRanks];
};

/// Host-mapped: the first bad id that a schedule found.
struct BadIdRecord {
  int32_t set;  // as above
  int32_t rank, token, slot, value, experts;
};

/// Where tests make a rank late.
enum class PauseAt : uint8_t { kLaunch, kStage, kDispatch, kPush };
constexpr int32_t kNumPauses{static_cast<int32_t>(PauseAt::kPush) + 1};

/// What a role spends cycles on (role_clock.cuh).
enum class RoleTime : uint8_t {
  kSchedulerDecode,  // ticket and decoding
  kSchedulerWait,    // counters
  kSchedulerQueue,   // a free queue entry
  kSchedulerLoader,  // the loader
  kConsumerQueue,    // an entry
  kConsumerTurn,
  kConsumerLoop,  // main loop
  kConsumerEpilogue,
  kConsumerCombine,
  kMoverWait,
  kMoverCopy,
};
constexpr int32_t kNumRoleTimes{static_cast<int32_t>(RoleTime::kMoverCopy) + 1};

/// A mover's slots in shared memory.
struct MoveSlots {
  static constexpr int32_t kSlots{6};
  static constexpr int32_t kLoads{4};  // in flight; the other slots are being stored
  uint64_t full[kSlots];
  void* to[kSlots];  // where the piece in a slot goes
  int32_t bytes[kSlots];
};

/// Where the launches of a group's ranks meet, to prove that they run at the same time.
struct Meeting {
  int32_t here;      // ranks that have come
  int32_t given_up;  // nonzero: somebody waited in vain, for more than so many ranks
};
struct MeetLaunch {
  Meeting* meeting;
  int32_t ranks;
  uint64_t limit_ns;
};

struct Launch : Operands {
  Plan plan;  // of the default tile; its epoch is read from `state`
  TensorMap maps[kNumMaps];
  TensorMap tall[kNumMaps];
  Heap heaps[kMaxRanks];
  std::byte* local;
  Layout layout;
  int32_t* counters;  // two halves
  int64_t counter_capacity;
  CounterLayout counter_layout;
  CounterState* counter_state;
  float* chain;          // Region::kChain of rank 0
  int32_t* chain_words;  // kSharedChain, at rank 0
  RankState* state;
  FaultRecord* fault;
  uint64_t timeout_ns;
  int32_t comm_workers;
  uint32_t odd;                   // tests: OddCall
  uint32_t pause_us[kNumPauses];  // tests
  uint64_t* clocks;               // [kNumRoleTimes]

  template <class T>
  MONOMOE_HD T* region(Region r) const {
    return reinterpret_cast<T*>(local + layout[r].offset);
  }
};
static_assert(sizeof(Launch) <= 32764, "kernel parameters on sm_70 and later");

}  // namespace monomoe::cuda
