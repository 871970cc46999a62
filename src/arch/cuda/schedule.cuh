// schedule: ids -> routing tables of this rank, in one launch. Counting and prefix sums only.
//
// Units    homes are cut into parts of consecutive tokens; block b works on b, b + blocks, ...
// Phase 1  (R > 1) own ids to the heap, flag per part; wait for the flags of a part before reading
// Phase 2  counts of a unit per expert, by warps over consecutive slots
// Barrier  of the grid
// Phase 3  starts from all counts (every block for itself), then rows in slot order: within a
//          warp's 32 slots the place among equal experts comes from a match, never from atomics
// Waits    peers' id flags (bounded), the grid barrier (bounded)
#pragma once

#include <cstdint>

#include "arch/cuda/ptx/memory.cuh"
#include "arch/cuda/schedule_launch.h"
#include "arch/cuda/signal.cuh"
#include "plan/epoch.h"
#include "plan/routing.h"

namespace monomoe::cuda {

struct UnitRange {
  int32_t home;
  int64_t begin, end;  // tokens of the home
};

__device__ inline UnitRange range_of(const ScheduleLaunch& l, int32_t unit) {
  const int32_t home{unit / l.parts};
  const int64_t part{unit % l.parts};
  const int64_t tokens{l.home_tokens[home + 1] - l.home_tokens[home]};
  // Parts end at token blocks, so that one unit counts a block's routes.
  const int64_t step{round_up<int64_t>(ceil_div<int64_t>(tokens, l.parts), l.tile.sum_tokens)};
  return {home, min_of(tokens, part * step), min_of(tokens, (part + 1) * step)};
}

/// The caller's id of an own token; a bad one is reported and counts as not routed.
__device__ inline int32_t own_id(const ScheduleLaunch& l, int64_t token, int32_t k) {
  const int64_t at{token * l.row + k * l.col};
  const int64_t e{l.wide ? static_cast<const int64_t*>(l.ids)[at]
                         : static_cast<const int32_t*>(l.ids)[at]};
  if (e >= -1 && e < l.dims.experts) return static_cast<int32_t>(e);
  if (atomicCAS_system(&l.bad_id->set, 0, 1) == 0) {
    *l.bad_id = {1,
                 l.dims.rank,
                 static_cast<int32_t>(token),
                 k,
                 static_cast<int32_t>(max_of<int64_t>(INT32_MIN, min_of<int64_t>(INT32_MAX, e))),
                 l.dims.experts};
    ptx::store_release_sys(&l.bad_id->set, 2);
  }
  return -1;
}

/// Reads ids of any home; only valid after the home's flags.
struct IdReader {
  const ScheduleLaunch& l;
  int32_t parity;
  __device__ int32_t operator()(int32_t home, int64_t slot) const {
    if (l.dims.ranks == 1) return own_id(l, slot / l.dims.top_k, slot % l.dims.top_k);
    const int64_t tokens{l.home_tokens[home + 1] - l.home_tokens[home]};
    return __ldcg(l.heaps[home].ids + parity * tokens * l.dims.top_k + slot);
  }
};

/// Who did not come: a home's ids, or blocks of this launch.
constexpr int32_t kNobody{-1};
constexpr int32_t kBlocks{kMaxRanks};

/// Leaves a record, then makes every peer leave: tables that lack a rank's ids are of no use.
__device__ inline void give_up(const ScheduleLaunch& l, int32_t missing, uint32_t epoch) {
  if (ptx::load_relaxed_sys(l.heaps[l.dims.rank].abort) != 0) return;  // somebody else has
  if (atomicCAS_system(&l.fault->set, 0, 1) == 0) {
    l.fault->reason =
        static_cast<int32_t>(missing == kBlocks ? FaultReason::kBlocks : FaultReason::kIds);
    l.fault->rank = l.dims.rank;
    l.fault->peer = missing;
    l.fault->epoch = epoch;
    l.fault->num_words = 0;
    ptx::store_release_sys(&l.fault->set, 2);
  }
#pragma unroll 1
  for (int32_t r{0}; r < l.dims.ranks; ++r) ptx::store_relaxed_sys(l.heaps[r].abort, 1);
}

__device__ inline bool spin(const ScheduleLaunch& l, const int32_t* flag, uint32_t epoch) {
  const uint64_t begin{ptx::global_nanoseconds()};
  while (!reached(static_cast<uint32_t>(ptx::load_acquire_sys(flag)), epoch)) {
    __nanosleep(32);
    if (ptx::load_relaxed_sys(l.heaps[l.dims.rank].abort) != 0) return false;
    if (ptx::global_nanoseconds() - begin > l.timeout_ns) return false;
  }
  return true;
}

/// Of all threads of the block: what thread 0 says.
__device__ inline bool agree(bool ok) { return __syncthreads_and(threadIdx.x != 0 || ok) != 0; }

/// All blocks of the launch; they are co-resident (at most one a SM), unless another kernel keeps
/// them from starting. False: they did not come.
__device__ inline bool grid_barrier(const ScheduleLaunch& l) {
  __syncthreads();
  bool ok{true};
  if (threadIdx.x == 0) {
    __threadfence();
    auto* word = reinterpret_cast<unsigned long long*>(&l.state->barrier);
    const uint64_t ticket{atomicAdd(word, 1ULL)};
    const uint64_t target{(ticket / gridDim.x + 1) * gridDim.x};
    const uint64_t begin{ptx::global_nanoseconds()};
    while (ok && atomicAdd(word, 0ULL) < target) {
      __nanosleep(32);
      ok = ptx::load_relaxed_sys(l.heaps[l.dims.rank].abort) == 0 &&
           ptx::global_nanoseconds() - begin <= l.timeout_ns;
    }
    __threadfence();
  }
  return agree(ok);
}

/// Slots [begin, end) of a warp's share of a unit.
struct SlotRange {
  int64_t begin, end;
};
__device__ inline SlotRange warp_slots(const ScheduleLaunch& l, const UnitRange& u, int32_t warp) {
  const int64_t first{u.begin * l.dims.top_k};
  const int64_t slots{(u.end - u.begin) * l.dims.top_k};
  const int64_t share{round_up<int64_t>(ceil_div<int64_t>(slots, l.warps), 32)};
  return {first + min_of(slots, warp * share), first + min_of(slots, (warp + 1) * share)};
}

/// hist[warp][E] of a unit, zeroed first.
__device__ inline void count_unit(const ScheduleLaunch& l, const UnitRange& u, const IdReader& ids,
                                  int32_t* hist) {
  const int32_t e_n{l.dims.experts};
  const auto tid = static_cast<int32_t>(threadIdx.x);
  for (int32_t i{tid}; i < l.warps * e_n; i += kScheduleThreads) hist[i] = 0;
  __syncthreads();
  const int32_t warp{tid / 32};
  if (warp < l.warps) {
    const SlotRange s{warp_slots(l, u, warp)};
    for (int64_t slot{s.begin + tid % 32}; slot < s.end; slot += 32) {
      const int32_t e{ids(u.home, slot)};
      if (e >= 0) atomicAdd(hist + warp * e_n + e, 1);  // integers: any order, the same sum
    }
  }
  __syncthreads();
}

/// hist becomes the first row of each warp and expert; starts[e] is the unit's first row.
__device__ inline void prefix_warps(const ScheduleLaunch& l, const int32_t* starts, int32_t* hist) {
  for (auto e = static_cast<int32_t>(threadIdx.x); e < l.dims.experts; e += kScheduleThreads) {
    int32_t at{starts == nullptr ? 0 : starts[e]};
    for (int32_t w{0}; w < l.warps; ++w) {
      const int32_t n{hist[w * l.dims.experts + e]};
      hist[w * l.dims.experts + e] = at;
      at += n;
    }
  }
  __syncthreads();
}

/// Rows of a unit, in slot order.
__device__ inline void place_unit(const ScheduleLaunch& l, const UnitRange& u, const IdReader& ids,
                                  int32_t* hist) {
  const Dims& d{l.dims};
  const int32_t lane{static_cast<int32_t>(threadIdx.x) % 32};
  const int32_t warp{static_cast<int32_t>(threadIdx.x) / 32};
  if (warp >= l.warps) return;
  const int32_t first{d.first_expert()};
  const int32_t last{first + d.local_experts()};
  auto* const row_src = reinterpret_cast<RowSource*>(l.words + l.layout.row_src);
  int32_t* const next{hist + warp * d.experts};
  const SlotRange s{warp_slots(l, u, warp)};
  for (int64_t base{s.begin}; base < s.end; base += 32) {
    const int64_t slot{base + lane};
    const int32_t e{slot < s.end ? ids(u.home, slot) : -1};
    if (slot < s.end && u.home == d.rank) l.words[l.layout.ids + slot] = e;
    const uint32_t same{__match_any_sync(0xFFFFFFFFU, e)};
    const int32_t place{__popc(same & ((1U << lane) - 1U))};
    const bool here{e >= first && e < last};
    const int32_t row{here ? next[e] + place : 0};
    __syncwarp();
    if (here) {
      row_src[row] = {u.home, static_cast<int32_t>(slot)};
      if (place == 0) next[e] += __popc(same);
    }
    __syncwarp();
  }
}

/// routes[token block] of own tokens.
__device__ inline void count_routes(const ScheduleLaunch& l, const UnitRange& u,
                                    const IdReader& ids) {
  if (u.home != l.dims.rank) return;
  const int32_t step{l.tile.sum_tokens};
  const int32_t lane{static_cast<int32_t>(threadIdx.x) % 32};
  for (int64_t first{u.begin + int64_t{step} * (threadIdx.x / 32)}; first < u.end;
       first += int64_t{step} * (kScheduleThreads / 32)) {
    const int64_t begin{first * l.dims.top_k};
    const int64_t end{min_of(u.end, first + step) * l.dims.top_k};
    int32_t routed{0};
    for (int64_t slot{begin}; slot < end; slot += 32) {
      const bool is{slot + lane < end && ids(u.home, slot + lane) >= 0};
      routed += __popc(__ballot_sync(0xFFFFFFFFU, is));
    }
    if (lane == 0) l.words[l.layout.routes + first / step] = routed;
  }
}

/// totals[e] = rows of all units; before[e] = rows of units < unit.
__device__ inline void sum_units(const ScheduleLaunch& l, int32_t unit, int32_t* before,
                                 int32_t* totals) {
  const int32_t units{l.parts * l.dims.ranks};
  const int32_t e_n{l.dims.experts};
  for (auto e = static_cast<int32_t>(threadIdx.x); e < e_n; e += kScheduleThreads) {
    int32_t sum{0};
    int32_t mine{0};
#pragma unroll 8
    for (int32_t u = 0; u < units; ++u) {
      if (u == unit) mine = sum;
      sum += __ldcg(l.counts + int64_t{u} * e_n + e);
    }
    before[e] = mine;
    totals[e] = sum;
  }
  __syncthreads();
}

/// tiles[e] = first row tile of expert e within its rank, for all experts of all ranks; by warp 0.
/// Also the largest number of tiles of a rank.
__device__ inline void scan_tiles(const ScheduleLaunch& l, const int32_t* totals, int32_t* tiles,
                                  int32_t* max_tiles) {
  if (threadIdx.x < 32) {
    const auto lane = static_cast<int32_t>(threadIdx.x);
    Dims d{l.dims};
    int32_t most{0};
    for (d.rank = 0; d.rank < d.ranks; ++d.rank) {
      int32_t carry{0};
      for (int32_t base{0}; base < d.local_experts(); base += 32) {
        const int32_t i{base + lane};
        const int32_t e{d.first_expert() + i};
        const int32_t n{i < d.local_experts() ? row_tiles(totals[e], l.tile) : 0};
        int32_t sum{n};
#pragma unroll
        for (int32_t step = 1; step < 32; step *= 2) {
          const int32_t other{__shfl_up_sync(0xFFFFFFFFU, sum, step)};
          if (lane >= step) sum += other;
        }
        if (i < d.local_experts()) tiles[e] = carry + sum - n;
        carry += __shfl_sync(0xFFFFFFFFU, sum, 31);
      }
      most = max_of(most, carry);
    }
    if (lane == 0) *max_tiles = most;
  }
  __syncthreads();
}

/// Header, tile_start, home_start: block 0.
__device__ inline void write_starts(const ScheduleLaunch& l, const int32_t* totals,
                                    const int32_t* tiles, int32_t max_tiles, int32_t* scratch) {
  const Dims& d{l.dims};
  const auto tid = static_cast<int32_t>(threadIdx.x);
  int32_t* const num_rows{scratch};
  auto* const hash = reinterpret_cast<uint32_t*>(scratch + 1);
  if (tid == 0) *num_rows = *hash = 0;
  __syncthreads();
  uint32_t terms{0};
  for (int32_t e{tid}; e < d.experts; e += kScheduleThreads) {
    const int32_t local{e - d.first_expert()};
    const bool mine{local >= 0 && local < d.local_experts()};
    int32_t row{0};
    for (int32_t home{0}; home < d.ranks; ++home) {
      if (mine) l.words[l.layout.home_start + int64_t{local} * (d.ranks + 1) + home] = row;
      const int32_t before{row};
      for (int32_t u{home * l.parts}; u < (home + 1) * l.parts; ++u) {
        row += __ldcg(l.counts + int64_t{u} * d.experts + e);
      }
      terms += hash_term(static_cast<uint32_t>(home * d.experts + e),
                         static_cast<uint32_t>(row - before));
    }
    if (!mine) continue;
    l.words[l.layout.home_start + int64_t{local} * (d.ranks + 1) + d.ranks] = row;
    l.words[l.layout.tile_start + local] = tiles[e];
    atomicAdd(num_rows, row);
  }
  atomicAdd(hash, terms);
  __syncthreads();
  if (tid != 0) return;
  const int32_t last{d.first_expert() + d.local_experts() - 1};
  const int32_t num_tiles{d.local_experts() > 0 ? tiles[last] + row_tiles(totals[last], l.tile)
                                                : 0};
  l.words[l.layout.tile_start + d.local_experts()] = num_tiles;
  *reinterpret_cast<TableHeader*>(l.words) = {
      TableHeader::kMagic, d.ranks,           d.rank,    d.experts, d.top_k,   d.tokens,
      l.tile.rows,         l.tile.sum_tokens, num_tiles, *num_rows, max_tiles, *hash};
}

/// Rows behind an expert's end, up to its last tile's end.
__device__ inline void write_gaps(const ScheduleLaunch& l, const int32_t* totals,
                                  const int32_t* tiles) {
  const Dims& d{l.dims};
  auto* const row_src = reinterpret_cast<RowSource*>(l.words + l.layout.row_src);
  for (auto i = static_cast<int32_t>(blockIdx.x); i < d.local_experts();
       i += static_cast<int32_t>(gridDim.x)) {
    const int32_t e{d.first_expert() + i};
    const int64_t begin{int64_t{tiles[e]} * l.tile.rows};
    const int64_t end{begin + int64_t{row_tiles(totals[e], l.tile)} * l.tile.rows};
    for (int64_t row{begin + totals[e] + threadIdx.x}; row < end; row += kScheduleThreads) {
      row_src[row] = {RowSource::kGap, 0};
    }
  }
}

/// Phase 1: own ids where peers read them.
__device__ inline void publish_ids(const ScheduleLaunch& l, uint32_t epoch, int32_t parity) {
  const Dims& d{l.dims};
  for (auto part = static_cast<int32_t>(blockIdx.x); part < l.parts;
       part += static_cast<int32_t>(gridDim.x)) {
    const UnitRange u{range_of(l, d.rank * l.parts + part)};
    int32_t* const to{l.heaps[d.rank].ids + int64_t{parity} * d.tokens * d.top_k};
    for (int64_t slot{u.begin * d.top_k + threadIdx.x}; slot < u.end * d.top_k;
         slot += kScheduleThreads) {
      to[slot] = own_id(l, slot / d.top_k, static_cast<int32_t>(slot % d.top_k));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      ptx::store_release_sys(l.heaps[d.rank].flags + part, static_cast<int32_t>(epoch));
    }
  }
}

/// Waits for the ids of a home's unit. False: they did not come.
__device__ inline bool wait_for_ids(const ScheduleLaunch& l, int32_t unit, uint32_t epoch) {
  if (l.dims.ranks == 1) return true;
  bool ok{true};
  if (threadIdx.x == 0) {
    ok = spin(l, l.heaps[unit / l.parts].flags + unit % l.parts, epoch);
  }
  return agree(ok);
}

/// Phases 1 and 2, and the barrier. Returns who did not come, or kNobody.
__device__ inline int32_t count_all(const ScheduleLaunch& l, const IdReader& ids, uint32_t epoch,
                                    int32_t* hist) {
  const int32_t e_n{l.dims.experts};
  if (l.dims.ranks > 1) publish_ids(l, epoch, ids.parity);
  for (auto u = static_cast<int32_t>(blockIdx.x); u < l.parts * l.dims.ranks;
       u += static_cast<int32_t>(gridDim.x)) {
    if (!wait_for_ids(l, u, epoch)) return u / l.parts;
    count_unit(l, range_of(l, u), ids, hist);
    for (auto e = static_cast<int32_t>(threadIdx.x); e < e_n; e += kScheduleThreads) {
      int32_t sum{0};
      for (int32_t w{0}; w < l.warps; ++w) sum += hist[w * e_n + e];
      l.counts[int64_t{u} * e_n + e] = sum;
    }
    __syncthreads();
  }
  return grid_barrier(l) ? kNobody : kBlocks;
}

/// Shared memory, or memory of this block's own where E is too large for it: hist[warps][E],
/// before[E], totals[E], tiles[E], a few words.
__device__ inline void schedule_block(const ScheduleLaunch& l, int32_t* smem) {
  pause(l, PauseAt::kLaunch);
  // An aborted group's launch touches no peer, and no table.
  if (!agree(ptx::load_relaxed_sys(l.heaps[l.dims.rank].abort) == 0)) return;
  if (l.scratch != nullptr) smem = l.scratch + blockIdx.x * l.scratch_words;
  const uint32_t epoch{l.state->epoch + 1};
  const auto parity = static_cast<int32_t>(epoch & 1U);
  const int32_t e_n{l.dims.experts};
  const int32_t units{l.parts * l.dims.ranks};
  int32_t* const hist{smem};
  int32_t* const before{hist + int64_t{l.warps} * e_n};
  int32_t* const totals{before + e_n};
  int32_t* const tiles{totals + e_n};
  int32_t* const scratch{tiles + e_n};
  const IdReader ids{l, parity};
  const auto first = static_cast<int32_t>(blockIdx.x);
  const auto blocks = static_cast<int32_t>(gridDim.x);

  const int32_t missing{count_all(l, ids, epoch, hist)};
  if (missing != kNobody) {
    if (threadIdx.x == 0) give_up(l, missing, epoch);
    return;
  }
  for (int32_t u{first}; u < max_of(units, blocks); u += blocks) {
    sum_units(l, u, before, totals);
    scan_tiles(l, totals, tiles, scratch + 2);
    if (u == 0) write_starts(l, totals, tiles, scratch[2], scratch);
    if (u == first) write_gaps(l, totals, tiles);
    if (u >= units) break;
    const UnitRange range{range_of(l, u)};
    if (units > blocks) count_unit(l, range, ids, hist);
    for (auto e = static_cast<int32_t>(threadIdx.x); e < e_n; e += kScheduleThreads) {
      before[e] += tiles[e] * l.tile.rows;
    }
    __syncthreads();
    prefix_warps(l, before, hist);
    place_unit(l, range, ids, hist);
    count_routes(l, range, ids);
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicAdd(&l.state->left, 1U) == gridDim.x - 1) {
      l.state->left = 0;
      l.state->epoch = epoch;
    }
  }
}

}  // namespace monomoe::cuda
