// Every named memory region and every offset in it. Nobody else computes one.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "base/int_math.h"
#include "plan/counters.h"
#include "plan/plan.h"

namespace monomoe {

/// What region sizes follow from. Capacities are for the worst routing.
struct WorkspaceFacts {
  Dims dims;
  TileShape tile;
  int32_t ring_tiles{2};
  int64_t tile_capacity{0};  // row tiles the rank may receive
  bool backward{false};
  bool recomputes{false};  // some row tile's gate_up may be computed again
  int32_t spill_tiles{0};  // wgrad tiles if an expert may be chunked, else 0
  int32_t chain_tiles{0};  // shared wgrad tiles of a local group with R > 1, else 0
  int64_t gap_bytes{0};    // kept free behind each region; only tests want some
};

struct Extent {
  int64_t offset{0};
  int64_t bytes{0};
};

enum class Region : uint8_t {
  // Symmetric heap: peers read and write it.
  kXStage,       // [T, H] bf16
  kDyStage,      // [T, H] bf16
  kWeightStage,  // [T, K] fp32 router weights
  kSlots,        // [T * K, H] bf16: y rows in forward, dx rows in backward
  kSlotScalars,  // [T * K] fp32 router gradients
  // Local.
  kXRing,           // [ring, H] bf16 dispatched x
  kDyRing,          // [ring, H] bf16 dispatched dy
  kWeightRing,      // [ring] fp32 router weight of the row
  kActRing,         // [ring, I] bf16: a in forward, w * a in backward
  kGradRing,        // [ring, 2, I] bf16 dgate, dup
  kPreactRing,      // gate_up computed again, preact_index order
  kPartials,        // [ring, column tiles of I] fp32 router gradient partials
  kSharedAct,       // [T, Is] bf16: a, or sigma * a
  kSharedGrad,      // [T, 2, Is] bf16
  kSharedPreact,    // gate_up of the shared expert computed again
  kSharedOut,       // [T, H] bf16: the shared expert's output, or its dx
  kSharedPartials,  // [T, column tiles of Is] fp32
  kDscore,          // [T] fp32
  kSpill,           // [wgrad tiles, rows, cols] fp32
  kChain,           // [shared wgrad tiles, rows, cols] fp32, at rank 0
};
constexpr int32_t kNumRegions{static_cast<int32_t>(Region::kChain) + 1};
constexpr int32_t kNumHeapRegions{static_cast<int32_t>(Region::kSlotScalars) + 1};

constexpr const char* name_of(Region r) {
  constexpr const char* kNames[kNumRegions]{
      "x_stage",     "dy_stage",        "weight_stage", "slots",       "slot_scalars",
      "x_ring",      "dy_ring",         "weight_ring",  "act_ring",    "grad_ring",
      "preact_ring", "partials",        "shared_act",   "shared_grad", "shared_preact",
      "shared_out",  "shared_partials", "dscore",       "spill",       "chain"};
  return kNames[static_cast<int32_t>(r)];
}

struct Layout {
  Extent at[kNumRegions];
  int64_t heap_bytes{0};
  int64_t local_bytes{0};
  MONOMOE_HD constexpr const Extent& operator[](Region r) const {
    return at[static_cast<int32_t>(r)];
  }
};

/// Pre-activations are stored in blocks of 64 rows x 64 columns (task/gate_up.h).
constexpr int32_t kPreactBlock{64};

/// Elements of pre-activations for `rows` rows of width `inter`: gate and up.
MONOMOE_HD constexpr int64_t preact_elements(int64_t rows, int32_t inter) {
  return round_up<int64_t>(rows, kPreactBlock) * round_up(inter, kPreactBlock) * 2;
}

MONOMOE_HD constexpr int64_t region_bytes(const WorkspaceFacts& f, Region r) {
  const Dims& d{f.dims};
  const int64_t tokens{d.tokens};
  const int64_t slots{tokens * d.top_k};
  const int64_t ring{int64_t{f.ring_tiles} * f.tile.rows};
  const int64_t tile{int64_t{f.tile.rows} * f.tile.cols * 4};
  const int64_t shared_rows{round_up<int64_t>(tokens, f.tile.align)};
  const bool staged{d.ranks > 1};
  switch (r) {
    case Region::kXStage:
      return staged ? tokens * d.hidden * 2 : 0;
    case Region::kDyStage:
      return staged && f.backward ? tokens * d.hidden * 2 : 0;
    case Region::kWeightStage:
      return staged && f.backward ? slots * 4 : 0;
    case Region::kSlots:
      return slots * d.hidden * 2;
    case Region::kSlotScalars:
      return f.backward ? slots * 4 : 0;
    case Region::kXRing:
      return ring * d.hidden * 2;
    case Region::kDyRing:
      return f.backward ? ring * d.hidden * 2 : 0;
    case Region::kWeightRing:
      return f.backward ? ring * 4 : 0;
    case Region::kActRing:
      return ring * d.inter * 2;
    case Region::kGradRing:
      return f.backward ? ring * 2 * d.inter * 2 : 0;
    case Region::kPreactRing:
      return f.backward && f.recomputes ? preact_elements(ring, d.inter) * 2 : 0;
    case Region::kPartials:
      return f.backward ? ring * col_tiles(d.inter, f.tile) * 4 : 0;
    case Region::kSharedAct:
      return shared_rows * d.shared * 2;
    case Region::kSharedGrad:
      return f.backward ? shared_rows * 2 * d.shared * 2 : 0;
    case Region::kSharedPreact:
      return f.backward && f.recomputes ? preact_elements(tokens, d.shared) * 2 : 0;
    case Region::kSharedOut:
      return d.shared > 0 ? tokens * d.hidden * 2 : 0;
    case Region::kSharedPartials:
      return f.backward ? tokens * col_tiles(d.shared, f.tile) * 4 : 0;
    case Region::kDscore:
      return f.backward && d.score ? tokens * 4 : 0;
    case Region::kSpill:
      return f.spill_tiles * tile;
    case Region::kChain:
      return d.rank == 0 ? f.chain_tiles * tile : 0;
  }
  return 0;
}

constexpr int64_t kRegionAlign{256};  // bytes

MONOMOE_HD constexpr Layout workspace_layout(const WorkspaceFacts& f) {
  Layout l{};
  for (int32_t i{0}; i < kNumRegions; ++i) {
    int64_t& end{i < kNumHeapRegions ? l.heap_bytes : l.local_bytes};
    l.at[i] = {end, region_bytes(f, static_cast<Region>(i))};
    end += round_up(l.at[i].bytes + f.gap_bytes, kRegionAlign);
  }
  return l;
}

/// Word offsets of the local counters inside one half.
struct CounterLayout {
  int64_t at[kNumCounters];
  int64_t words{0};
};

MONOMOE_HD constexpr int64_t counter_count(const WorkspaceFacts& f, Counter c) {
  const int64_t token_tiles{f.dims.shared > 0 ? row_tiles(f.dims.tokens, f.tile) : 0};
  switch (c) {
    case Counter::kRowsReady:
    case Counter::kGuDone:
    case Counter::kDownDone:
    case Counter::kDdDone:
    case Counter::kDgDone:
    case Counter::kRowsPushed:
    case Counter::kWgradDone:
      return f.tile_capacity;
    case Counter::kSharedGuDone:
    case Counter::kSharedDownDone:
    case Counter::kSharedScoreDone:
    case Counter::kSharedDdDone:
    case Counter::kSharedDgDone:
    case Counter::kSharedDscoreDone:
      return token_tiles;
    case Counter::kSharedDdAll:
    case Counter::kSharedDscoreAll:
      return 1;
    case Counter::kSpill:
      return f.spill_tiles;
    case Counter::kSharedChain:
      return f.chain_tiles;
    case Counter::kArrival:
      return num_token_blocks(f.dims.tokens, f.tile);
    case Counter::kStageFlag:
      return ceil_div(f.dims.tokens, f.tile.stage_tokens);
  }
  return 0;
}

/// Local counters come first and are counted in halves; kArrival and kStageFlag belong to the heap.
MONOMOE_HD constexpr bool is_heap(Counter c) {
  return c == Counter::kArrival || c == Counter::kStageFlag;
}

MONOMOE_HD constexpr CounterLayout counter_layout(const WorkspaceFacts& f) {
  CounterLayout l{};
  l.words = kLaunchCounterWords;
  for (int32_t i{0}; i < kNumCounters; ++i) {
    const auto c = static_cast<Counter>(i);
    if (is_heap(c)) continue;
    l.at[i] = l.words;
    l.words += counter_count(f, c);
  }
  return l;
}

/// What forward keeps for backward, per rank, inside the caller's `saved` tensor.
struct SavedLayout {
  Extent preact;         // saved rows of row space, preact_index order, bf16
  Extent x;              // [saved rows, H] bf16, only with save = all
  Extent shared_preact;  // all tokens, preact_index order, bf16
  Extent score;          // [T] fp32 before the sigmoid
  int64_t bytes{0};
};

MONOMOE_HD constexpr SavedLayout saved_layout(const Dims& d, const TileShape& t, const Knobs& k) {
  SavedLayout l{};
  const int64_t rows{int64_t{k.save_tiles} * t.rows};
  const auto place = [&l](int64_t bytes) {
    const Extent e{l.bytes, bytes};
    l.bytes += round_up(bytes, kRegionAlign);
    return e;
  };
  l.preact = place(preact_elements(rows, d.inter) * 2);
  l.x = place(k.save_x ? rows * d.hidden * 2 : 0);
  l.shared_preact = place(k.save_shared ? preact_elements(d.tokens, d.shared) * 2 : 0);
  l.score = place(d.score ? int64_t{d.tokens} * 4 : 0);
  return l;
}

}  // namespace monomoe
