// Signaller role: one warp of a worker. A release waits until all stores before it are done; here
// nobody waits for it.
//
// Waits    queue entries, their results
// Reads    row_src, router gradient partials
// Writes   router gradients at the homes
// Signals  the counters of graph.h; arrivals at the homes for the last column tile of a row tile
// Timeline entries in order: results stored -> release
#pragma once

#include "arch/cuda/signal.cuh"
#include "arch/sm90/dgrad.cuh"
#include "arch/sm90/schedule_role.cuh"

namespace monomoe::sm90 {

/// The last column tile of a row tile sends it off: in backward the router gradients first, then
/// the arrivals at the homes, then the ring slot is free for another tile's partials.
template <class P>
__device__ inline void push_rows(const Context<P>& x, const Work& w) {
  const auto& p{x.plan};
  const int32_t lane{cuda::lane_id()};
  for (int32_t base{0}; base < w.rows; base += cuda::kLanes) {
    const int32_t row{base + lane};
    const bool mine{row < w.rows};
    RowSource src{RowSource::kGap, 0};
    if (mine) src = p.tables.row_src[int64_t{w.task.row} * p.tile.rows + row];
    if (mine && p.backward) {
      x.launch.heaps[src.home].slot_scalars[src.slot] =
          sum_partials(partials_of(x, w, row), p.inter_tiles());
    }
    __syncwarp();
    const int32_t block{src.slot / p.dims.top_k / p.tile.sum_tokens};
    const uint64_t key{(static_cast<uint64_t>(static_cast<uint32_t>(src.home)) << 32U) |
                       static_cast<uint32_t>(block)};
    const uint32_t same{__match_any_sync(cuda::kFullWarp, key)};
    if (mine && __ffs(static_cast<int>(same)) - 1 == lane) {
      cuda::add_release(x, {Counter::kArrival, src.home, block}, __popc(same));
    }
  }
  if (!p.backward) return;
  __syncwarp();
  if (lane == 0) cuda::add_release(x, {Counter::kRowsPushed, p.dims.rank, w.task.row}, 1);
}

template <class P>
__device__ inline void signal(const Context<P>& x, const Work& w) {
  const int32_t target{completion_target(x.plan, w.task.kind)};
  bool last{false};
  if (cuda::lane_id() == 0) {
    for_each_signal(x.plan, w.task, [&](const CounterRef& r, int32_t step) {
      if (target == 0) {
        cuda::add_release(x, r, step);
      } else {
        last = ptx::fetch_add_acq_rel_gpu(x.word(r), step) + step == target;
      }
    });
  }
  if (target == 0) return;
  last = __shfl_sync(cuda::kFullWarp, static_cast<int32_t>(last), 0) != 0;
  __syncwarp();  // the others' tiles of these rows, seen by the first lane
  if (!last) return;
  cuda::pause(x.launch, cuda::PauseAt::kPush);
  push_rows(x, w);
}

template <class P>
__device__ inline void signal_role(const Context<P>& x, WorkerSmem& s) {
  for (int32_t idx{0};; ++idx) {
    const Work& w{wait_entry(s, idx)};
    if (w.kind == Work::kStop) return;
    wait_stored(s, idx);
    if (w.kind != Work::kIdle) signal(x, w);
    __syncwarp();
    if (cuda::lane_id() == 0) release_entry(s, idx);
  }
}

}  // namespace monomoe::sm90
