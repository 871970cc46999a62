// One rank of one launch: its plan, the caller's tensors, its memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "comm/sym_heap.h"
#include "plan/graph.h"
#include "plan/workspace.h"
#include "task/activation.h"
#include "task/wgrad.h"

namespace monomoe::cpu {

/// Rows of bf16, `row` elements apart; several matrices `matrix` elements apart.
struct Rows {
  const Bf16* data{nullptr};
  int64_t row{0};
  int64_t matrix{0};

  [[nodiscard]] const Bf16* at(int64_t r) const { return data + r * row; }
  [[nodiscard]] Rows of(int64_t m) const { return {data + m * matrix, row, matrix}; }
};

/// A weight gradient to be written: bf16 or fp32, or absent.
struct GradOut {
  void* data{nullptr};
  int64_t row{0};     // elements
  int64_t matrix{0};  // elements
};

/// fp32 [T, K] with any strides.
struct Scalars {
  float* data{nullptr};
  int64_t row{0};
  int64_t col{0};

  [[nodiscard]] float& at(int64_t r, int64_t c) const { return data[r * row + c * col]; }
};

struct WeightRows {
  Rows gate, up, down;                       // of the rank's experts
  Rows shared_gate, shared_up, shared_down;  // data null without a shared expert
  const Bf16* shared_score{nullptr};         // [H]
};

struct WeightGrads {
  GradOut gate, up, down;
  GradOut shared_gate, shared_up, shared_down, shared_score;
  GradStore store{GradStore::kBf16};
};

/// Everything a task of this rank touches. Outputs of the other pass are null.
struct RankLaunch {
  Plan plan;
  Clamp clamp{};
  Rows x, dy;            // this rank's tokens, the caller's memory
  Scalars topk_weights;  // read only
  WeightRows weights;
  Bf16* y{nullptr};  // forward: y; backward: dx, may be null
  int64_t y_row{0};
  Scalars dtopk_weights;  // backward, data may be null
  WeightGrads grads;

  std::byte* saved{nullptr};  // written by forward, read by backward
  SavedLayout saved_layout;
  std::byte* local{nullptr};
  Layout layout;
  int32_t* counters{nullptr};  // the half of this launch
  CounterLayout counter_layout;
  std::vector<HeapView> heaps;       // of all ranks
  std::vector<Layout> heap_layouts;  // of all ranks
  int32_t* chain_counters{nullptr};  // kSharedChain of rank 0
  float* chain{nullptr};             // Region::kChain of rank 0

  template <class T>
  [[nodiscard]] T* region(Region r) const {
    return reinterpret_cast<T*>(local + layout[r].offset);
  }
  template <class T>
  [[nodiscard]] T* heap_region(int32_t rank, Region r) const {
    const auto i = static_cast<size_t>(rank);
    return reinterpret_cast<T*>(heaps[i].data + heap_layouts[i][r].offset);
  }
  template <class T>
  [[nodiscard]] T* saved_region(const Extent& e) const {
    return reinterpret_cast<T*>(saved + e.offset);
  }
  [[nodiscard]] int64_t ring_row(int32_t tile) const {
    return int64_t{plan.ring_slot(tile)} * plan.tile.rows;
  }

  /// The word behind a counter.
  [[nodiscard]] int32_t* word(const CounterRef& c) const {
    const auto rank = static_cast<size_t>(c.rank);
    switch (c.id) {
      case Counter::kArrival:
        return heaps[rank].arrivals + c.index;
      case Counter::kStageFlag:
        return heaps[rank].stage_flags + c.index;
      case Counter::kSharedChain:
        return chain_counters + c.index;
      default:
        return counters + counter_layout.at[static_cast<int32_t>(c.id)] + c.index;
    }
  }

  [[nodiscard]] int32_t load(const CounterRef& c) const {
    return std::atomic_ref<int32_t>{*word(c)}.load(std::memory_order_acquire);
  }

  /// Adds with release; the value afterwards.
  [[nodiscard]] int32_t add(const CounterRef& c, int32_t step) const {
    return std::atomic_ref<int32_t>{*word(c)}.fetch_add(step, std::memory_order_acq_rel) + step;
  }
};

}  // namespace monomoe::cpu
