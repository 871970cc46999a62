// Mover role: stage and dispatch tasks, one warp each.
//
// Waits    stage flags of the homes, ring slots (gate_up / wgrads done)
// Reads    row_src; x, dy, router weights where the homes offer them
// Writes   staging, arrival counters (zero), stage flags; rings or saved x
// Signals  kStageFlag, kRowsReady
// Timeline ticket -> lanes wait side by side -> copy 4 x 16 bytes a lane in flight -> release
#pragma once

#include <cstdint>

#include "arch/cuda/role_clock.cuh"
#include "arch/cuda/signal.cuh"
#include "plan/order.h"

namespace monomoe::cuda {

constexpr uint32_t kFullWarp{0xFFFFFFFFU};
constexpr int32_t kLanes{32};

__device__ inline int32_t lane_id() { return static_cast<int32_t>(threadIdx.x) % kLanes; }

/// `bytes16` vectors of 16 bytes.
__device__ inline void copy_row(void* dst, const void* src, int32_t vectors) {
  const uint4* from{static_cast<const uint4*>(src)};
  uint4* to{static_cast<uint4*>(dst)};
  constexpr int32_t kInFlight{4};
  for (int32_t i{lane_id()}; i < vectors; i += kLanes * kInFlight) {
    uint4 v[kInFlight];
#pragma unroll
    for (int32_t j = 0; j < kInFlight; ++j) {
      if (i + kLanes * j < vectors) v[j] = ptx::load_16(from + i + kLanes * j);
    }
#pragma unroll
    for (int32_t j = 0; j < kInFlight; ++j) {
      if (i + kLanes * j < vectors) to[i + kLanes * j] = v[j];
    }
  }
}

__device__ inline void zero_row(void* dst, int32_t vectors) {
  for (int32_t i{lane_id()}; i < vectors; i += kLanes) {
    static_cast<uint4*>(dst)[i] = make_uint4(0, 0, 0, 0);
  }
}

template <class P>
__device__ inline void stage(const Context<P>& x, const Task& t) {
  const Launch& l{x.launch};
  const auto& p{x.plan};
  const Dims& d{p.dims};
  const Heap& own{l.heaps[d.rank]};
  const int32_t begin{t.row * p.tile.stage_tokens};
  const int32_t end{min_of(d.tokens, begin + p.tile.stage_tokens)};
  const bool copies_x{!p.backward || !p.all_x_saved()};
  for (int32_t token{begin}; x.many_ranks() && token < end; ++token) {
    const int64_t at{int64_t{token} * d.hidden};
    if (copies_x) copy_row(own.x_stage + at, l.x.at(token), d.hidden / 8);
    if (!p.backward) continue;
    copy_row(own.dy_stage + at, l.dy.at(token), d.hidden / 8);
    for (int32_t k{lane_id()}; k < d.top_k; k += kLanes) {
      own.weight_stage[int64_t{token} * d.top_k + k] = l.topk_weights.at(token, k);
    }
  }
  const int32_t first{begin / p.tile.sum_tokens};
  const int32_t blocks{ceil_div(end - begin, p.tile.sum_tokens)};
  for (int32_t i{lane_id()}; i < blocks; i += kLanes) own.view.arrivals[first + i] = 0;
  __syncwarp();
  if (lane_id() == 0) {
    ptx::store_release_sys(own.view.stage_flags + t.row, static_cast<int32_t>(p.epoch));
  }
}

constexpr int32_t kMostMoveRows{16};  // rows of a task: lanes 0 .. 15 own one each

/// The waits of a dispatch task, a lane each, side by side: lane i for the flag of row i (`src`),
/// the lanes behind for the ring.
template <class P>
__device__ inline bool wait_dispatch(const Context<P>& x, const Task& t, const RowSource& src) {
  CounterRef mine{};
  int32_t wanted{0};
  bool waits{src.home != RowSource::kGap};
  if (waits) {
    mine = stage_flag_of(x.plan, src);
    wanted = static_cast<int32_t>(x.plan.epoch);
  }
  int32_t lane{kMostMoveRows};
  detail::wait_ring(x.plan, t, [&](const CounterRef& c, int32_t target) {
    if (lane++ != lane_id()) return;
    mine = c;
    wanted = target;
    waits = true;
  });
  const bool ok{!waits || satisfied(mine, poll(x, mine), wanted) ||
                keep_polling(x, Waiter{Line::kMove, t.kind, t.row, t.col}, mine, wanted)};
  if (waits) acquire(x);
  return __all_sync(kFullWarp, ok) != 0;
}

template <class P>
__device__ inline Bf16* x_row_of(const Launch& l, const P& p, int32_t tile) {
  const int64_t h{p.dims.hidden};
  return p.x_in_saved(tile)
             ? l.saved_region<Bf16>(l.saved_layout.x) + int64_t{tile} * p.tile.rows * h
             : l.region<Bf16>(Region::kXRing) + int64_t{p.ring_slot(tile)} * p.tile.rows * h;
}

/// False: the launch is aborted.
template <class P>
__device__ inline bool dispatch(const Context<P>& x, const Task& t, RoleClock* clock) {
  const Launch& l{x.launch};
  const auto& p{x.plan};
  const int32_t h{p.dims.hidden};
  const int32_t vectors{h / 8};
  const int32_t rows{p.rows_of(t.expert, t.row)};
  const int32_t begin{t.col * p.tile.move_rows};
  const int32_t end{min_of(padded_rows(rows, p.tile), begin + p.tile.move_rows)};
  RowSource own{RowSource::kGap, 0};
  if (lane_id() < kMostMoveRows && begin + lane_id() < min_of(end, rows)) {
    own = p.tables.row_src[int64_t{t.row} * p.tile.rows + begin + lane_id()];
  }
  if (!wait_dispatch(x, t, own)) return false;
  if (lane_id() == 0) clock->lap(RoleTime::kMoverWait);
  const bool pulls_x{!p.backward || !p.x_in_saved(t.row)};
  Bf16* const to_x{x_row_of(l, p, t.row)};
  const int64_t ring{int64_t{p.ring_slot(t.row)} * p.tile.rows};
  Bf16* const to_dy{l.region<Bf16>(Region::kDyRing) + ring * h};
  for (int32_t i{begin}; i < end; ++i) {
    const int64_t at{int64_t{i} * h};
    if (i >= rows) {
      if (pulls_x) zero_row(to_x + at, vectors);
      if (p.backward) zero_row(to_dy + at, vectors);
      continue;
    }
    const RowSource src{__shfl_sync(kFullWarp, own.home, i - begin),
                        __shfl_sync(kFullWarp, own.slot, i - begin)};
    const int32_t token{src.slot / p.dims.top_k};
    const Heap& home{l.heaps[src.home]};
    if (pulls_x) {
      copy_row(to_x + at, x.many_ranks() ? home.x_stage + int64_t{token} * h : l.x.at(token),
               vectors);
    }
    if (!p.backward) continue;
    copy_row(to_dy + at, x.many_ranks() ? home.dy_stage + int64_t{token} * h : l.dy.at(token),
             vectors);
    if (lane_id() == 0) {
      const int32_t k{src.slot - token * p.dims.top_k};
      l.region<float>(Region::kWeightRing)[ring + i] =
          x.many_ranks() ? home.weight_stage[src.slot] : l.topk_weights.at(token, k);
    }
  }
  ptx::fence_proxy_async();
  __syncwarp();
  if (lane_id() == 0) {
    add_release(x, {Counter::kRowsReady, p.dims.rank, t.row}, 1);
    clock->lap(RoleTime::kMoverCopy);
  }
  return true;
}

/// One warp takes move tickets until the line ends.
template <class P>
__device__ inline void mover_loop(const Context<P>& x) {
  MoveCursor cursor{x.plan};
  RoleClock clock{x.launch};
  for (;;) {
    int32_t ticket{0};
    if (lane_id() == 0) ticket = atomicAdd(x.launch_word(LaunchCounter::kMoveTicket), 1);
    ticket = __shfl_sync(kFullWarp, ticket, 0);
    Task t;
    if (!cursor.seek(x.plan, ticket, &t)) return;
    if (t.kind == Kind::kStage) {
      stage(x, t);
      continue;
    }
    if (!dispatch(x, t, &clock)) return;
  }
}

}  // namespace monomoe::cuda
