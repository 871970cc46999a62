// Mover role: stage and dispatch tasks, one warp each.
//
// Waits    stage flags of the homes, ring slots (gate_up / wgrads done)
// Reads    row_src; x, dy, router weights where the homes offer them
// Writes   staging, arrival counters (zero), stage flags; rings or saved x
// Signals  kStageFlag, kRowsReady
// Timeline ticket -> lanes wait side by side -> rows go through shared memory by bulk copies, four
//          pieces coming and two leaving -> all stores complete -> release
#pragma once

#include <cstdint>

#include "arch/cuda/ptx/tma.cuh"
#include "arch/cuda/role_clock.cuh"
#include "arch/cuda/signal.cuh"
#include "plan/order.h"

namespace monomoe::cuda {

/// Copies rows through the slots, in order. For one lane, always the same: elect.sync's.
class RowPipe {
 public:
  /// `memory`: kSlots * slot_bytes, 128-byte aligned. Barriers are initialised.
  __device__ RowPipe(MoveSlots* slots, uint8_t* memory, int32_t slot_bytes)
      : slots_{slots}, memory_{memory}, slot_bytes_{slot_bytes} {}

  __device__ void copy(void* dst, const void* src, int32_t bytes) {
    for (int32_t done{0}; done < bytes; done += slot_bytes_) {
      if (loading_ == MoveSlots::kLoads) store_oldest();
      // The slot's last piece was stored kSlots - kLoads + 1 pieces ago or earlier.
      ptx::bulk_wait_read<MoveSlots::kSlots - MoveSlots::kLoads>();
      const int32_t n{min_of(slot_bytes_, bytes - done)};
      slots_->to[head_] = static_cast<uint8_t*>(dst) + done;
      slots_->bytes[head_] = n;
      ptx::barrier_expect(&slots_->full[head_], static_cast<uint32_t>(n));
      ptx::bulk_load(memory_ + head_ * slot_bytes_, static_cast<const uint8_t*>(src) + done,
                     static_cast<uint32_t>(n), &slots_->full[head_]);
      ++loading_;
      if (++head_ == MoveSlots::kSlots) head_ = 0;
    }
  }

  /// All that was copied is written.
  __device__ void flush() {
    while (loading_ > 0) store_oldest();
    ptx::bulk_wait_all();
  }

 private:
  __device__ void store_oldest() {
    ptx::barrier_wait(&slots_->full[tail_], phase_);
    ptx::bulk_store(slots_->to[tail_], memory_ + tail_ * slot_bytes_,
                    static_cast<uint32_t>(slots_->bytes[tail_]));
    --loading_;
    if (++tail_ == MoveSlots::kSlots) {
      tail_ = 0;
      phase_ ^= 1U;
    }
  }

  MoveSlots* slots_;
  uint8_t* memory_;
  int32_t slot_bytes_;
  int32_t head_{0};
  int32_t tail_{0};
  int32_t loading_{0};
  uint32_t phase_{0};
};

__device__ inline void zero_row(void* dst, int32_t vectors) {
  for (int32_t i{lane_id()}; i < vectors; i += kLanes) {
    static_cast<uint4*>(dst)[i] = make_uint4(0, 0, 0, 0);
  }
}

template <class P>
__device__ inline void stage(const Context<P>& x, const Task& t, RowPipe* pipe) {
  const Launch& l{x.launch};
  const auto& p{x.plan};
  const Dims& d{p.dims};
  const Heap& own{l.heaps[d.rank]};
  const int32_t begin{t.row * p.tile.stage_tokens};
  const int32_t end{min_of(d.tokens, begin + p.tile.stage_tokens)};
  const bool copies_x{!p.backward || !p.all_x_saved()};
  if (x.many_ranks()) {
    by_one_lane([&] {
      for (int32_t token{begin}; token < end; ++token) {
        const int64_t at{int64_t{token} * d.hidden};
        if (copies_x) pipe->copy(own.x_stage + at, l.x.at(token), d.hidden * 2);
        if (p.backward) pipe->copy(own.dy_stage + at, l.dy.at(token), d.hidden * 2);
      }
      pipe->flush();
    });
  }
  if (x.many_ranks() && p.backward) {
    const int32_t last{end * d.top_k};
    for (int32_t slot{begin * d.top_k + lane_id()}; slot < last; slot += kLanes) {
      const int32_t token{slot / d.top_k};
      own.weight_stage[slot] = l.topk_weights.at(token, slot - token * d.top_k);
    }
  }
  const int32_t first{begin / p.tile.sum_tokens};
  const int32_t blocks{ceil_div(end - begin, p.tile.sum_tokens)};
  for (int32_t i{lane_id()}; i < blocks; i += kLanes) own.view.arrivals[first + i] = 0;
  __syncwarp();
  pause(l, PauseAt::kStage);
  if (lane_id() == 0) {
    ptx::fence_proxy_async();
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
  return all_arrived(x, Waiter{Line::kMove, t.kind, t.row, t.col}, waits, mine, wanted, true);
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
__device__ inline bool dispatch(const Context<P>& x, const Task& t, RowPipe* pipe,
                                RoleClock* clock) {
  const Launch& l{x.launch};
  const auto& p{x.plan};
  const int32_t h{p.dims.hidden};
  const int32_t rows{p.rows_of(t.expert, t.row)};
  const int32_t begin{t.col * p.tile.move_rows};
  const int32_t end{min_of(padded_rows(rows, p.tile), begin + p.tile.move_rows)};
  RowSource own{RowSource::kGap, 0};
  if (lane_id() < kMostMoveRows && begin + lane_id() < min_of(end, rows)) {
    own = p.tables.row_src[int64_t{t.row} * p.tile.rows + begin + lane_id()];
  }
  if (!wait_dispatch(x, t, own)) return false;
  pause(l, PauseAt::kDispatch);
  if (lane_id() == 0) clock->lap(RoleTime::kMoverWait);
  const bool pulls_x{!p.backward || !p.x_in_saved(t.row)};
  Bf16* const to_x{x_row_of(l, p, t.row)};
  const int64_t ring{int64_t{p.ring_slot(t.row)} * p.tile.rows};
  Bf16* const to_dy{l.region<Bf16>(Region::kDyRing) + ring * h};
  const int32_t token{own.slot / p.dims.top_k};
  if (p.backward && own.home != RowSource::kGap) {
    l.region<float>(Region::kWeightRing)[ring + begin + lane_id()] =
        x.many_ranks() ? l.heaps[own.home].weight_stage[own.slot]
                       : l.topk_weights.at(token, own.slot - token * p.dims.top_k);
  }
  by_one_lane([] { ptx::fence_proxy_async(); });  // staged rows came by ordinary stores too
  for (int32_t i{begin}; i < end; ++i) {
    const int64_t at{int64_t{i} * h};
    if (i >= rows) {
      if (pulls_x) zero_row(to_x + at, h / 8);
      if (p.backward) zero_row(to_dy + at, h / 8);
      continue;
    }
    const int32_t home{__shfl_sync(kFullWarp, own.home, i - begin)};
    const int64_t from{int64_t{__shfl_sync(kFullWarp, token, i - begin)}};
    by_one_lane([&] {
      const Heap& heap{l.heaps[home]};
      if (pulls_x) {
        pipe->copy(to_x + at, x.many_ranks() ? heap.x_stage + from * h : l.x.at(from), h * 2);
      }
      if (p.backward) {
        pipe->copy(to_dy + at, x.many_ranks() ? heap.dy_stage + from * h : l.dy.at(from), h * 2);
      }
    });
  }
  ptx::fence_proxy_async();
  by_one_lane([&] {
    pipe->flush();
    add_release(x, {Counter::kRowsReady, p.dims.rank, t.row}, 1);
    clock->lap(RoleTime::kMoverCopy);
  });
  return true;
}

/// One warp takes move tickets until the line ends.
template <class P>
__device__ inline void mover_loop(const Context<P>& x, RowPipe pipe) {
  MoveCursor cursor{x.plan};
  RoleClock clock{x.launch};
  for (;;) {
    int32_t ticket{0};
    if (lane_id() == 0) ticket = atomicAdd(x.launch_word(LaunchCounter::kMoveTicket), 1);
    ticket = __shfl_sync(kFullWarp, ticket, 0);
    Task t;
    if (!cursor.seek(x.plan, ticket, &t)) return;
    if (t.kind == Kind::kStage) {
      stage(x, t, &pipe);
      continue;
    }
    if (!dispatch(x, t, &pipe, &clock)) return;
  }
}

}  // namespace monomoe::cuda
