// Task kinds, and for each the counters it waits for and the counters it raises.
//
// Both machines obey these lists: a GPU waits on them, the CPU asserts them.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "plan/counters.h"
#include "plan/epoch.h"
#include "plan/plan.h"

namespace monomoe {

enum class Kind : uint8_t {
  kStage,
  kDispatch,
  kGateUp,  // in backward: the recomputation
  kDown,
  kDgradDown,
  kDgradGateUp,
  kWgradGateUp,
  kWgradDown,
  kSharedGateUp,
  kSharedScore,
  kSharedDown,
  kSharedDgradDown,
  kSharedDscore,
  kSharedDgradGateUp,
  kSharedWgradGateUp,
  kSharedWgradDown,
  kSharedWgradScore,
  kCombine,
};
constexpr int32_t kNumKinds{static_cast<int32_t>(Kind::kCombine) + 1};

constexpr const char* name_of(Kind k) {
  constexpr const char* kNames[kNumKinds]{"stage",
                                          "dispatch",
                                          "gate_up",
                                          "down",
                                          "dgrad_down",
                                          "dgrad_gate_up",
                                          "wgrad_gate_up",
                                          "wgrad_down",
                                          "shared_gate_up",
                                          "shared_score",
                                          "shared_down",
                                          "shared_dgrad_down",
                                          "shared_dscore",
                                          "shared_dgrad_gate_up",
                                          "shared_wgrad_gate_up",
                                          "shared_wgrad_down",
                                          "shared_wgrad_score",
                                          "combine"};
  return kNames[static_cast<int32_t>(k)];
}

/// The three lines of tickets of a rank.
enum class Line : uint8_t { kMain, kMove, kCombine };
constexpr int32_t kNumLines{3};

constexpr const char* name_of(Line l) {
  constexpr const char* kNames[kNumLines]{"main", "move", "combine"};
  return kNames[static_cast<int32_t>(l)];
}

/// A piece of work. Which fields mean something depends on the kind:
///   stage: row = stage chunk | combine: row = token block | dispatch: expert, row, col = part
///   routed GEMMs: expert, row = row tile of row space, col = column tile
///   shared GEMMs: row = token tile, col = column tile
///   wgrads: row, col = tile of the gradient; chunk = rows summed; pass = see below
struct Task {
  Kind kind{Kind::kStage};
  int32_t expert{0};
  int32_t row{0};
  int32_t col{0};
  Chunk chunk{};
  int32_t pass{-1};  // number of the chunk among all chunks of chunked experts, -1: not chunked
  bool first{true};  // wgrads: the sum starts at zero here
  bool last{true};   // wgrads: the gradient is complete here
};

/// Index of a wgrad tile in the spill region and its counters.
template <class P>
MONOMOE_HD int32_t wgrad_index(const P& p, const Task& t) {
  return t.kind == Kind::kWgradGateUp ? t.row * p.hidden_tiles() + t.col
                                      : p.wgrad_gate_up_tiles() + t.row * p.inter_tiles() + t.col;
}

/// The same for the chain of shared gradients.
template <class P>
MONOMOE_HD int32_t shared_wgrad_index(const P& p, const Task& t) {
  switch (t.kind) {
    case Kind::kSharedWgradGateUp:
      return t.row * p.hidden_tiles() + t.col;
    case Kind::kSharedWgradDown:
      return p.shared_wgrad_gate_up_tiles() + t.row * p.shared_inter_tiles() + t.col;
    default:
      return p.shared_wgrad_gate_up_tiles() + p.shared_wgrad_down_tiles() + t.col;
  }
}

/// Token tiles of the shared expert that a combine task reads: [first, last].
template <class P>
MONOMOE_HD int32_t first_token_tile(const P& p, int32_t block) {
  return block * p.tile.sum_tokens / p.tile.rows;
}
template <class P>
MONOMOE_HD int32_t last_token_tile(const P& p, int32_t block) {
  const int32_t last{min_of(p.dims.tokens, (block + 1) * p.tile.sum_tokens) - 1};
  return last / p.tile.rows;
}

/// The flag that says a row's token is staged.
template <class P>
MONOMOE_HD CounterRef stage_flag_of(const P& p, const RowSource& src) {
  return {Counter::kStageFlag, src.home, src.slot / p.dims.top_k / p.tile.stage_tokens};
}

namespace detail {

/// The ring slot of a dispatched row tile is free: its last readers are done.
template <class P, class F>
MONOMOE_HD void wait_ring(const P& p, const Task& t, const F& wait) {
  const int32_t me{p.dims.rank};
  const int32_t old{t.row - p.knobs.ring_tiles};
  if (old < 0) return;
  if (!p.backward) {
    wait(CounterRef{Counter::kGuDone, me, old}, p.gu_tiles());
    return;
  }
  wait(CounterRef{Counter::kDdDone, me, old}, p.inter_tiles());
  if (p.wgrad_tiles() > 0) {
    wait(CounterRef{Counter::kWgradDone, me, chunk_of_tile(p, old).begin}, p.wgrad_tiles());
  }
}

template <class P, class F>
MONOMOE_HD void wait_dispatch(const P& p, const Task& t, const F& wait) {
  // The homes have staged the tokens of these rows.
  const int32_t begin{t.row * p.tile.rows + t.col * p.tile.move_rows};
  const int32_t end{
      min_of(begin + p.tile.move_rows, t.row * p.tile.rows + p.rows_of(t.expert, t.row))};
  CounterRef seen{Counter::kStageFlag, -1, -1};
  for (int32_t row{begin}; row < end; ++row) {
    const CounterRef flag{stage_flag_of(p, p.tables.row_src[row])};
    if (flag.rank == seen.rank && flag.index == seen.index) continue;
    seen = flag;
    wait(flag, static_cast<int32_t>(p.epoch));
  }
  wait_ring(p, t, wait);
}

template <class P, class F>
MONOMOE_HD void wait_wgrad(const P& p, const Task& t, const F& wait) {
  for (int32_t n{t.chunk.begin}; n < t.chunk.end; ++n) {
    wait(CounterRef{Counter::kDdDone, p.dims.rank, n}, p.inter_tiles());
  }
  if (t.pass > 0) wait(CounterRef{Counter::kSpill, p.dims.rank, wgrad_index(p, t)}, t.pass);
}

template <class P, class F>
MONOMOE_HD void wait_combine(const P& p, const Task& t, const F& wait) {
  const int32_t me{p.dims.rank};
  // The own stage task has zeroed the arrival counter.
  wait(CounterRef{Counter::kStageFlag, me, t.row * p.tile.sum_tokens / p.tile.stage_tokens},
       static_cast<int32_t>(p.epoch));
  wait(CounterRef{Counter::kArrival, me, t.row}, p.tables.routes[t.row]);
  if (p.dims.shared == 0) return;
  for (int32_t m{first_token_tile(p, t.row)}; m <= last_token_tile(p, t.row); ++m) {
    wait(CounterRef{p.backward ? Counter::kSharedDgDone : Counter::kSharedDownDone, me, m},
         p.hidden_tiles());
    if (p.dims.score) {
      wait(CounterRef{p.backward ? Counter::kSharedDscoreDone : Counter::kSharedScoreDone, me, m},
           1);
    }
  }
}

}  // namespace detail

/// Does a counter that shows `seen` hold what a wait wants?
MONOMOE_HD constexpr bool satisfied(const CounterRef& c, int32_t seen, int32_t wanted) {
  return c.id == Counter::kStageFlag
             ? reached(static_cast<uint32_t>(seen), static_cast<uint32_t>(wanted))
             : seen >= wanted;
}

/// Calls wait(CounterRef, target) for everything that must hold before `t` may start. Counters
/// count up to their target exactly; kStageFlag holds an epoch and is compared by `reached`.
template <class P, class F>
MONOMOE_HD void for_each_wait(const P& p, const Task& t, const F& wait) {
  const int32_t me{p.dims.rank};
  const int32_t old{t.row - p.knobs.ring_tiles};  // row tile that had the ring slot before
  switch (t.kind) {
    case Kind::kStage:
      return;
    case Kind::kDispatch:
      detail::wait_dispatch(p, t, wait);
      return;
    case Kind::kGateUp:
      wait(CounterRef{Counter::kRowsReady, me, t.row}, p.moves_of(p.rows_of(t.expert, t.row)));
      // Forward overwrites `a` of the old tile. (Backward overwrites its pre-activations: their
      // readers were waited for by the dispatch of this tile.)
      if (!p.backward && old >= 0) {
        wait(CounterRef{Counter::kDownDone, me, old}, p.hidden_tiles());
      }
      return;
    case Kind::kDown:
      wait(CounterRef{Counter::kGuDone, me, t.row}, p.gu_tiles());
      return;
    case Kind::kDgradDown:
      wait(CounterRef{Counter::kRowsReady, me, t.row}, p.moves_of(p.rows_of(t.expert, t.row)));
      if (p.recomputed(t.row)) wait(CounterRef{Counter::kGuDone, me, t.row}, p.gu_tiles());
      // Overwrites dgate, dup, w*a (readers: wgrads, waited for by dispatch, and dgrad_gate_up)
      // and the router partials of the old tile.
      if (old >= 0) wait(CounterRef{Counter::kRowsPushed, me, old}, 1);
      return;
    case Kind::kDgradGateUp:
      wait(CounterRef{Counter::kDdDone, me, t.row}, p.inter_tiles());
      return;
    case Kind::kWgradGateUp:
    case Kind::kWgradDown:
      detail::wait_wgrad(p, t, wait);
      return;
    case Kind::kSharedGateUp:
    case Kind::kSharedScore:
      return;
    case Kind::kSharedDown:
      wait(CounterRef{Counter::kSharedGuDone, me, t.row}, p.shared_gu_tiles());
      return;
    case Kind::kSharedDgradDown:
      if (p.recomputes_shared()) {
        wait(CounterRef{Counter::kSharedGuDone, me, t.row}, p.shared_gu_tiles());
      }
      return;
    case Kind::kSharedDscore:
    case Kind::kSharedDgradGateUp:
      wait(CounterRef{Counter::kSharedDdDone, me, t.row}, p.shared_inter_tiles());
      return;
    case Kind::kSharedWgradGateUp:
    case Kind::kSharedWgradDown:
      wait(CounterRef{Counter::kSharedDdAll, me, 0}, p.token_tiles() * p.shared_inter_tiles());
      if (p.chain_shared) {
        wait(CounterRef{Counter::kSharedChain, 0, shared_wgrad_index(p, t)}, me);
      }
      return;
    case Kind::kSharedWgradScore:
      wait(CounterRef{Counter::kSharedDscoreAll, me, 0}, p.token_tiles());
      if (p.chain_shared) {
        wait(CounterRef{Counter::kSharedChain, 0, shared_wgrad_index(p, t)}, me);
      }
      return;
    case Kind::kCombine:
      detail::wait_combine(p, t, wait);
      return;
  }
}

/// The counter of its row (or chunk) that a task of this kind raises by 1 when its work is visible.
/// kNumCounters: none. (kStage instead zeroes the arrival counters of its token blocks and sets its
/// flag.)
MONOMOE_HD constexpr int32_t done_counter(Kind kind) {
  switch (kind) {
    case Kind::kDispatch:
      return static_cast<int32_t>(Counter::kRowsReady);
    case Kind::kGateUp:
      return static_cast<int32_t>(Counter::kGuDone);
    case Kind::kDown:
      return static_cast<int32_t>(Counter::kDownDone);
    case Kind::kDgradDown:
      return static_cast<int32_t>(Counter::kDdDone);
    case Kind::kDgradGateUp:
      return static_cast<int32_t>(Counter::kDgDone);
    case Kind::kWgradGateUp:
    case Kind::kWgradDown:
      return static_cast<int32_t>(Counter::kWgradDone);
    case Kind::kSharedGateUp:
      return static_cast<int32_t>(Counter::kSharedGuDone);
    case Kind::kSharedScore:
      return static_cast<int32_t>(Counter::kSharedScoreDone);
    case Kind::kSharedDown:
      return static_cast<int32_t>(Counter::kSharedDownDone);
    case Kind::kSharedDgradDown:
      return static_cast<int32_t>(Counter::kSharedDdDone);
    case Kind::kSharedDscore:
      return static_cast<int32_t>(Counter::kSharedDscoreDone);
    case Kind::kSharedDgradGateUp:
      return static_cast<int32_t>(Counter::kSharedDgDone);
    case Kind::kSharedWgradGateUp:
    case Kind::kSharedWgradDown:
    case Kind::kSharedWgradScore:
      return static_cast<int32_t>(Counter::kSharedChain);
    case Kind::kStage:
    case Kind::kCombine:
      break;
  }
  return kNumCounters;
}

/// Calls raise(CounterRef, step) for every counter that `t` raises when its work is visible.
template <class P, class F>
MONOMOE_HD void for_each_signal(const P& p, const Task& t, const F& raise) {
  if (done_counter(t.kind) == kNumCounters) return;
  CounterRef done{static_cast<Counter>(done_counter(t.kind)), p.dims.rank, t.row};
  CounterRef also{Counter::kSpill, p.dims.rank, -1};
  if (done.id == Counter::kWgradDone) {
    if (t.chunk.begin == t.chunk.end) return;
    done.index = t.chunk.begin;
    if (t.pass >= 0) also.index = wgrad_index(p, t);
  } else if (done.id == Counter::kSharedChain) {
    if (!p.chain_shared) return;
    done.rank = 0;
    done.index = shared_wgrad_index(p, t);
  } else if (done.id == Counter::kSharedDdDone) {
    also = {Counter::kSharedDdAll, p.dims.rank, 0};
  } else if (done.id == Counter::kSharedDscoreDone) {
    also = {Counter::kSharedDscoreAll, p.dims.rank, 0};
  }
  raise(done, 1);
  if (also.index >= 0) raise(also, 1);
}

/// The last column tile of a row tile sends the rows off: value of the tile's counter, after its
/// own step, at which a task has to do so. 0: never.
template <class P>
MONOMOE_HD int32_t completion_target(const P& p, Kind kind) {
  return kind == Kind::kDown || kind == Kind::kDgradGateUp ? p.hidden_tiles() : 0;
}

/// Calls raise(CounterRef, step) for what that last task raises: arrivals at the homes, one step
/// per row, rows of one token block together; in backward then kRowsPushed.
template <class P, class F>
MONOMOE_HD void for_each_arrival(const P& p, const Task& t, const F& raise) {
  const int32_t begin{t.row * p.tile.rows};
  const int32_t end{begin + p.rows_of(t.expert, t.row)};
  CounterRef run{Counter::kArrival, -1, -1};
  int32_t count{0};
  for (int32_t row{begin}; row < end; ++row) {
    const RowSource src{p.tables.row_src[row]};
    const int32_t block{src.slot / p.dims.top_k / p.tile.sum_tokens};
    if (src.home != run.rank || block != run.index) {
      if (count > 0) raise(run, count);
      run = {Counter::kArrival, src.home, block};
      count = 0;
    }
    ++count;
  }
  if (count > 0) raise(run, count);
  if (p.backward) raise(CounterRef{Counter::kRowsPushed, p.dims.rank, t.row}, 1);
}

}  // namespace monomoe
