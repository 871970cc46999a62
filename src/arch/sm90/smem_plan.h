// Shared memory of a worker: one struct, its sizeof is the launch parameter.
#pragma once

#include <cstdint>

#include "arch/sm90/work.h"
#include "plan/order.h"

namespace monomoe::sm90 {

constexpr int32_t kThreads{384};  // producer warpgroup and two consumer warpgroups
constexpr int32_t kConsumers{2};
constexpr int32_t kGroupThreads{128};
constexpr int32_t kStages{6};
constexpr int32_t kHalfBytes{64 * kBlockK * 2};  // 64 rows (or columns) x 64 k of bf16
constexpr int32_t kStageBytes{4 * kHalfBytes};   // two halves of A, two of B
constexpr int32_t kStagingBytes{2048};           // a warp's 16 rows x 64 columns of bf16
constexpr int32_t kQueue{8};
constexpr int32_t kStartWords{384};  // up to 191 experts; more are looked up in global memory
constexpr int32_t kProducerWarps{4};
constexpr int32_t kMoveBytes{2048};  // a mover's slot; a worker that only moves uses its stages
constexpr int32_t kWideMoveBytes{kStageBytes / cuda::MoveSlots::kSlots / 128 * 128};

/// Two blocks work as a pair (a cluster): one takes tickets for both, each ticket holds two tiles,
/// and each block loads half of the operand that they share, for both.
constexpr int32_t kPair{2};
constexpr uint32_t kLeader{0};

/// Readers of a queue entry: the loader, the signaller, four warps of the warpgroup that skips it.
constexpr uint32_t kQueueReaders{6};

/// What the picker found for the scheduler: tickets of the main line that follow each other, a look
/// at the combine line, a ticket of it.
enum class Step : uint8_t { kTasks, kLook, kSums, kEnd };
constexpr int32_t kBatch{4};
struct Batch {
  Step step;
  int32_t first;                           // ticket
  int32_t tickets;                         // so many of `work`
  alignas(Work) Work work[kBatch][kPair];  // entries of both blocks
};
static_assert(kBatch <= MainCursor::kAhead);
constexpr int32_t kBatches{2};

/// Picker and scheduler are in different blocks.
union PickSmem {
  struct {
    MainCursor cursor;  // local memory would be lost at every acquire
    Batch batch;        // in work
  } picker;
  Batch batches[kBatches];  // at the scheduler
};

/// Where a consumer warp is. In shared memory: a register would be spilled around each task.
struct Progress {
  int32_t idx;    // queue entry
  int32_t fills;  // of stages before it, modulo 2 * kStages
};

struct alignas(1024) WorkerSmem {
  uint8_t stages[kStages][kStageBytes];
  uint8_t staging[kConsumers * 4][kStagingBytes];
  uint8_t moves[cuda::MoveSlots::kSlots][kMoveBytes];
  Work queue[kQueue];
  PickSmem pick;
  cuda::MoveSlots movers[kProducerWarps];
  RowSource targets[kConsumers * 4][FixedTile::rows / 4];  // where the rows of a warp go
  int32_t starts[kStartWords];                             // tile_start, then rows of each expert
  Progress progress[kConsumers * 4];
  uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t turn[kConsumers];
  uint64_t queue_full[kQueue];
  uint64_t stored[kQueue];  // the entry's results are stored
  uint64_t queue_empty[kQueue];
  uint64_t batch_full[kBatches];   // at the scheduler
  uint64_t batch_empty[kBatches];  // at the picker
  int32_t* counters;               // this launch's half
  CounterLayout counter_layout;
  int32_t aborted;  // the group was, before this launch began; or the scheduler gave up
  int32_t begun;    // stages of the main line that the loader has begun with
  int32_t arrived;  // order of this block among the launch's blocks
};

/// The same with the plan of a pass; its tables point to `starts` if they fit.
template <bool kBackward>
struct PassSmem : WorkerSmem {
  FixedPlan<kBackward> plan;
};
constexpr int32_t kSmemBytes{static_cast<int32_t>(sizeof(PassSmem<true>))};
static_assert(sizeof(PassSmem<true>) == sizeof(PassSmem<false>));
static_assert(kSmemBytes <= 232448, "shared memory of a block on sm_90");

}  // namespace monomoe::sm90
