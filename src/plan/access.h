// What every task reads and writes, as plain facts: the contracts of task/*.h in integers.
//
// Only check.h uses this. A place is a piece of memory; a version is what lies in it: ring slots,
// staged chunks and spilled tiles are reused, so the place alone does not name the contents.
#pragma once

#include <cstdint>

#include "plan/graph.h"
#include "plan/workspace.h"

namespace monomoe {

/// Memory outside of the workspace that tasks touch; numbered behind `Region`.
enum class Outside : int32_t {
  kSavedPreact = kNumRegions,  // saved state: written by forward, read by backward
  kSavedX,
  kSavedSharedPreact,
  kSavedScore,
  kArrivals,    // the arrival counters as memory: zeroed, raised, waited for
  kOut,         // y or dx
  kRouterGrad,  // dtopk_weights
  kGradGateUp,
  kGradDown,
  kSharedGradient,  // all shared weight gradients
  kEpochStage,      // the staging regions of a home as a whole: their layout depends on H and K
  kEpochSlots,      // the slots of a home as a whole
  kEpochCounters,   // one half of the local counters of a rank as a whole
};
constexpr int32_t kNumPlaces{static_cast<int32_t>(Outside::kEpochCounters) + 1};

constexpr const char* name_of(Outside o) {
  constexpr const char* kNames[kNumPlaces - kNumRegions]{
      "saved_preact",  "saved_x",     "saved_shared_preact", "saved_score", "arrivals",
      "out",           "router_grad", "grad_gate_up",        "grad_down",   "shared_gradient",
      "staging_whole", "slots_whole", "local_counters_whole"};
  return kNames[static_cast<int32_t>(o) - kNumRegions];
}

/// A piece of memory of a rank. What `key` counts depends on the region: ring slots, stage chunks,
/// slots times column tiles, token tiles, ...
struct Place {
  int32_t rank{0};
  int32_t region{0};  // Region or Outside
  int64_t key{0};
};

constexpr bool is(const Place& p, Region r) { return p.region == static_cast<int32_t>(r); }
constexpr bool is(const Place& p, Outside o) { return p.region == static_cast<int32_t>(o); }

constexpr const char* name_of(const Place& p) {
  return p.region < kNumRegions ? name_of(static_cast<Region>(p.region))
                                : name_of(static_cast<Outside>(p.region));
}

/// Places that exactly one task may write per version: outputs, and slots, where a second write
/// would mean that two rows claim one slot.
constexpr bool is_written_once(const Place& p) {
  return is(p, Region::kSlots) || is(p, Region::kSlotScalars) ||
         (p.region >= static_cast<int32_t>(Outside::kOut) &&
          p.region <= static_cast<int32_t>(Outside::kSharedGradient));
}

struct Access {
  Place place;
  int64_t version;
  bool write;
};

/// Names one launch, and the saved state it writes (forward) or reads (backward).
struct LaunchId {
  int32_t launch{0};
  int32_t context{0};
};

/// Versions of the same place rise in the order in which its contents follow each other.
constexpr int64_t version_of(int32_t launch, int32_t n) { return (int64_t{launch} << 32) + n; }

namespace detail {

/// Builds the accesses of one task: short words for the lists below.
template <class F>
class AccessList {
 public:
  AccessList(const Plan& p, const LaunchId& id, const F& f) : p_{p}, id_{id}, f_{f} {}

  // Rings: contents are row tile n.
  void ring(Region r, int32_t n, bool write) const {
    f_(Access{{p_.dims.rank, static_cast<int32_t>(r), p_.ring_slot(n)},
              version_of(id_.launch, n),
              write});
  }
  // Saved state: one piece of memory per context, filled once.
  void saved(Outside o, int32_t n, bool write) const {
    f_(Access{{p_.dims.rank, static_cast<int32_t>(o), version_of(id_.context, n)},
              version_of(id_.context, 0),
              write});
  }
  // Anything that is filled once a launch.
  void own(Region r, int64_t key, bool write) const {
    f_(Access{{p_.dims.rank, static_cast<int32_t>(r), key}, version_of(id_.launch, 0), write});
  }
  void out(Outside o, int64_t key) const {
    f_(Access{{p_.dims.rank, static_cast<int32_t>(o), key}, version_of(id_.launch, 0), true});
  }
  void at_home(int32_t home, Region r, int64_t key, bool write) const {
    f_(Access{{home, static_cast<int32_t>(r), key}, version_of(id_.launch, 0), write});
    const Outside whole{r == Region::kSlots || r == Region::kSlotScalars ? Outside::kEpochSlots
                                                                         : Outside::kEpochStage};
    f_(Access{{home, static_cast<int32_t>(whole), 0}, version_of(id_.launch, 0), true});
  }
  // A fp32 tile handed from step to step: spilled sums, the chain of shared gradients.
  void step(int32_t rank, Region r, int32_t key, int32_t n, bool write) const {
    f_(Access{{rank, static_cast<int32_t>(r), key}, version_of(id_.launch, n), write});
  }
  void x(int32_t n, bool write) const {
    if (p_.x_in_saved(n)) {
      saved(Outside::kSavedX, n, write);
    } else {
      ring(Region::kXRing, n, write);
    }
  }

 private:
  const Plan& p_;
  const LaunchId& id_;
  const F& f_;
};

template <class F>
void access_stage(const Plan& p, const Task& t, const AccessList<F>& a) {
  if (p.dims.ranks == 1) return;  // dispatch reads the caller's tensors
  const int32_t me{p.dims.rank};
  if (!p.backward || !p.all_x_saved()) a.at_home(me, Region::kXStage, t.row, true);
  if (!p.backward) return;
  a.at_home(me, Region::kDyStage, t.row, true);
  a.at_home(me, Region::kWeightStage, t.row, true);
}

template <class F>
void access_dispatch(const Plan& p, const Task& t, const AccessList<F>& a) {
  const bool pulls_x{!p.backward || !p.x_in_saved(t.row)};
  const int32_t first{t.row * p.tile.rows};
  const int32_t begin{first + t.col * p.tile.move_rows};
  const int32_t end{min_of(begin + p.tile.move_rows, first + p.rows_of(t.expert, t.row))};
  for (int32_t row{begin}; row < end && p.dims.ranks > 1; ++row) {
    const RowSource src{p.tables.row_src[row]};
    const int32_t chunk{src.slot / p.dims.top_k / p.tile.stage_tokens};
    if (pulls_x) a.at_home(src.home, Region::kXStage, chunk, false);
    if (!p.backward) continue;
    a.at_home(src.home, Region::kDyStage, chunk, false);
    a.at_home(src.home, Region::kWeightStage, chunk, false);
  }
  if (pulls_x) a.x(t.row, true);
  if (!p.backward) return;
  a.ring(Region::kDyRing, t.row, true);
  a.ring(Region::kWeightRing, t.row, true);
}

/// Calls f(home, slot) for every routed row of row tile `n` of `expert`.
template <class F>
void for_each_row(const Plan& p, int32_t expert, int32_t n, const F& f) {
  const int32_t begin{n * p.tile.rows};
  const int32_t end{begin + p.rows_of(expert, n)};
  for (int32_t row{begin}; row < end; ++row) {
    f(p.tables.row_src[row].home, p.tables.row_src[row].slot);
  }
}

template <class F>
void access_slots(const Plan& p, const Task& t, const AccessList<F>& a) {
  for_each_row(p, t.expert, t.row, [&](int32_t home, int32_t slot) {
    a.at_home(home, Region::kSlots, int64_t{slot} * p.hidden_tiles() + t.col, true);
  });
}

template <class F>
void access_gate_up(const Plan& p, const Task& t, const AccessList<F>& a) {
  a.x(t.row, false);
  if (p.backward) {
    a.ring(Region::kPreactRing, t.row, true);
    return;
  }
  a.ring(Region::kActRing, t.row, true);
  if (!p.recomputed(t.row)) a.saved(Outside::kSavedPreact, t.row, true);
}

template <class F>
void access_dgrad_down(const Plan& p, const Task& t, const AccessList<F>& a) {
  a.ring(Region::kDyRing, t.row, false);
  a.ring(Region::kWeightRing, t.row, false);
  if (p.recomputed(t.row)) {
    a.ring(Region::kPreactRing, t.row, false);
  } else {
    a.saved(Outside::kSavedPreact, t.row, false);
  }
  a.ring(Region::kGradRing, t.row, true);
  a.ring(Region::kActRing, t.row, true);
  a.ring(Region::kPartials, t.row, true);
}

template <class F>
void access_wgrad(const Plan& p, const Task& t, const AccessList<F>& a) {
  const bool gate_up{t.kind == Kind::kWgradGateUp};
  for (int32_t n{t.chunk.begin}; n < t.chunk.end; ++n) {
    if (gate_up) {
      a.ring(Region::kGradRing, n, false);
      a.x(n, false);
    } else {
      a.ring(Region::kDyRing, n, false);
      a.ring(Region::kActRing, n, false);
    }
  }
  const int32_t tile{wgrad_index(p, t)};
  if (!t.first) a.step(p.dims.rank, Region::kSpill, tile, t.pass - 1, false);
  if (!t.last) {
    a.step(p.dims.rank, Region::kSpill, tile, t.pass, true);
    return;
  }
  a.out(gate_up ? Outside::kGradGateUp : Outside::kGradDown, version_of(t.expert, tile));
}

template <class F>
void access_combine(const Plan& p, const Task& t, const AccessList<F>& a) {
  const int32_t k{p.dims.top_k};
  const int32_t begin{t.row * p.tile.sum_tokens * k};
  const int32_t end{min_of(begin + p.tile.sum_tokens * k, p.dims.tokens * k)};
  for (int32_t slot{begin}; slot < end; ++slot) {
    if (p.tables.ids[slot] < 0) continue;
    for (int32_t col{0}; col < p.hidden_tiles(); ++col) {
      a.at_home(p.dims.rank, Region::kSlots, int64_t{slot} * p.hidden_tiles() + col, false);
    }
    if (p.backward) a.at_home(p.dims.rank, Region::kSlotScalars, slot, false);
  }
  if (p.dims.shared > 0) {
    for (int32_t m{first_token_tile(p, t.row)}; m <= last_token_tile(p, t.row); ++m) {
      for (int32_t col{0}; col < p.hidden_tiles(); ++col) {
        a.own(Region::kSharedOut, int64_t{m} * p.hidden_tiles() + col, false);
      }
      if (!p.dims.score) continue;
      if (p.backward) {
        a.own(Region::kDscore, m, false);
      } else {
        a.saved(Outside::kSavedScore, m, false);
      }
    }
  }
  a.out(Outside::kOut, t.row);
  if (p.backward) a.out(Outside::kRouterGrad, t.row);
}

template <class F>
void access_shared_forward(const Plan& p, const Task& t, const AccessList<F>& a) {
  switch (t.kind) {
    case Kind::kSharedGateUp:
      if (p.backward) {
        a.own(Region::kSharedPreact, t.row, true);
        return;
      }
      a.own(Region::kSharedAct, t.row, true);
      if (p.knobs.save_shared) a.saved(Outside::kSavedSharedPreact, t.row, true);
      return;
    case Kind::kSharedScore:
      a.saved(Outside::kSavedScore, t.row, true);
      return;
    default:  // kSharedDown
      a.own(Region::kSharedAct, t.row, false);
      a.own(Region::kSharedOut, int64_t{t.row} * p.hidden_tiles() + t.col, true);
      return;
  }
}

template <class F>
void access_shared_dgrad(const Plan& p, const Task& t, const AccessList<F>& a) {
  switch (t.kind) {
    case Kind::kSharedDgradDown:
      if (p.recomputes_shared()) {
        a.own(Region::kSharedPreact, t.row, false);
      } else {
        a.saved(Outside::kSavedSharedPreact, t.row, false);
      }
      if (p.dims.score) a.saved(Outside::kSavedScore, t.row, false);
      a.own(Region::kSharedGrad, t.row, true);
      a.own(Region::kSharedAct, t.row, true);
      a.own(Region::kSharedPartials, t.row, true);
      return;
    case Kind::kSharedDscore:
      a.own(Region::kSharedPartials, t.row, false);
      a.saved(Outside::kSavedScore, t.row, false);
      a.own(Region::kDscore, t.row, true);
      return;
    default:  // kSharedDgradGateUp
      a.own(Region::kSharedGrad, t.row, false);
      a.own(Region::kSharedOut, int64_t{t.row} * p.hidden_tiles() + t.col, true);
      return;
  }
}

template <class F>
void access_shared_wgrad(const Plan& p, const Task& t, const AccessList<F>& a) {
  const Region operand{t.kind == Kind::kSharedWgradGateUp ? Region::kSharedGrad
                       : t.kind == Kind::kSharedWgradDown ? Region::kSharedAct
                                                          : Region::kDscore};
  for (int32_t m{0}; m < p.token_tiles(); ++m) a.own(operand, m, false);
  const int32_t tile{shared_wgrad_index(p, t)};
  const int32_t me{p.dims.rank};
  const bool chained{p.chain_shared};
  if (chained && me > 0) a.step(0, Region::kChain, tile, me - 1, false);
  if (chained && me < p.dims.ranks - 1) {
    a.step(0, Region::kChain, tile, me, true);
  } else {
    a.out(Outside::kSharedGradient, tile);
  }
}

}  // namespace detail

/// Calls f(Access) for everything `t` reads and writes up to its signals. What a task only reads
/// from the caller (weights, own x and dy) is left out: nobody writes it.
template <class F>
void for_each_access(const Plan& p, const Task& t, const LaunchId& id, const F& f) {
  const detail::AccessList<F> a{p, id, f};
  switch (t.kind) {
    case Kind::kStage:
      return detail::access_stage(p, t, a);
    case Kind::kDispatch:
      return detail::access_dispatch(p, t, a);
    case Kind::kGateUp:
      return detail::access_gate_up(p, t, a);
    case Kind::kDown:
      a.ring(Region::kActRing, t.row, false);
      return detail::access_slots(p, t, a);
    case Kind::kDgradDown:
      return detail::access_dgrad_down(p, t, a);
    case Kind::kDgradGateUp:
      a.ring(Region::kGradRing, t.row, false);
      return detail::access_slots(p, t, a);
    case Kind::kWgradGateUp:
    case Kind::kWgradDown:
      return detail::access_wgrad(p, t, a);
    case Kind::kSharedGateUp:
    case Kind::kSharedScore:
    case Kind::kSharedDown:
      return detail::access_shared_forward(p, t, a);
    case Kind::kSharedDgradDown:
    case Kind::kSharedDscore:
    case Kind::kSharedDgradGateUp:
      return detail::access_shared_dgrad(p, t, a);
    case Kind::kSharedWgradGateUp:
    case Kind::kSharedWgradDown:
    case Kind::kSharedWgradScore:
      return detail::access_shared_wgrad(p, t, a);
    case Kind::kCombine:
      return detail::access_combine(p, t, a);
  }
}

/// The same for what the last column tile of a row tile does besides (see completion_target):
/// backward sums the router partials of the tile and pushes them.
template <class F>
void for_each_push_access(const Plan& p, const Task& t, const LaunchId& id, const F& f) {
  if (!p.backward) return;
  const detail::AccessList<F> a{p, id, f};
  a.ring(Region::kPartials, t.row, false);
  detail::for_each_row(p, t.expert, t.row, [&](int32_t home, int32_t slot) {
    a.at_home(home, Region::kSlotScalars, slot, true);
  });
}

}  // namespace monomoe
