// Row copies: stage at the home, dispatch at the owner.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "arch/cpu/load.h"
#include "arch/cpu/rank.h"

namespace monomoe::cpu {

inline void copy_row(Bf16* dst, const Bf16* src, int32_t cols) {
  std::memcpy(dst, src, sizeof(Bf16) * static_cast<size_t>(cols));
}

/// Copies the chunk's rows where peers read, zeroes its arrival counters, raises its flag.
inline void stage(const RankLaunch& r, const Task& t) {
  const Plan& p{r.plan};
  const Dims& d{p.dims};
  const int32_t me{d.rank};
  const int32_t begin{t.row * p.tile.stage_tokens};
  const int32_t end{min_of(d.tokens, begin + p.tile.stage_tokens)};
  const bool copies_x{!p.backward || !p.all_x_saved()};
  for (int32_t token{begin}; d.ranks > 1 && token < end; ++token) {
    const int64_t at{int64_t{token} * d.hidden};
    if (copies_x) {
      copy_row(r.heap_region<Bf16>(me, Region::kXStage) + at, r.x.at(token), d.hidden);
    }
    if (!p.backward) continue;
    copy_row(r.heap_region<Bf16>(me, Region::kDyStage) + at, r.dy.at(token), d.hidden);
    float* weights{r.heap_region<float>(me, Region::kWeightStage) + int64_t{token} * d.top_k};
    for (int32_t k{0}; k < d.top_k; ++k) weights[k] = r.topk_weights.at(token, k);
  }
  for (int32_t block{begin / p.tile.sum_tokens}; block * p.tile.sum_tokens < end; ++block) {
    std::atomic_ref<int32_t>{*r.word({Counter::kArrival, me, block})}.store(
        0, std::memory_order_relaxed);
  }
  std::atomic_ref<int32_t>{*r.word({Counter::kStageFlag, me, t.row})}.store(
      static_cast<int32_t>(p.epoch), std::memory_order_release);
}

/// A token's row and router weight where its home offers them; with R = 1 the caller's own.
inline const Bf16* home_row(const RankLaunch& r, const Rows& own, Region staged,
                            const RowSource& src) {
  const int64_t token{src.slot / r.plan.dims.top_k};
  if (r.plan.dims.ranks == 1) return own.at(token);
  return r.heap_region<Bf16>(src.home, staged) + token * r.plan.dims.hidden;
}

inline float home_weight(const RankLaunch& r, const RowSource& src) {
  const int32_t k{r.plan.dims.top_k};
  if (r.plan.dims.ranks == 1) return r.topk_weights.at(src.slot / k, src.slot % k);
  return r.heap_region<float>(src.home, Region::kWeightStage)[src.slot];
}

/// Pulls rows [col * move_rows, + move_rows) of a row tile; rows behind the expert's end are zero.
inline void dispatch(const RankLaunch& r, const Task& t) {
  const Plan& p{r.plan};
  const int32_t h{p.dims.hidden};
  const int32_t rows{p.rows_of(t.expert, t.row)};
  const int32_t begin{t.col * p.tile.move_rows};
  const int32_t end{min_of(padded_rows(rows, p.tile), begin + p.tile.move_rows)};
  const bool pulls_x{!p.backward || !p.x_in_saved(t.row)};
  Bf16* x{const_cast<Bf16*>(x_rows(r, t.row).data)};
  for (int32_t i{begin}; i < end; ++i) {
    const int64_t at{int64_t{i} * h};
    if (i >= rows) {
      if (pulls_x) std::memset(x + at, 0, sizeof(Bf16) * static_cast<size_t>(h));
      if (p.backward) {
        std::memset(const_cast<Bf16*>(dy_rows(r, t.row).data) + at, 0,
                    sizeof(Bf16) * static_cast<size_t>(h));
      }
      continue;
    }
    const RowSource src{p.tables.row_src[int64_t{t.row} * p.tile.rows + i]};
    if (pulls_x) copy_row(x + at, home_row(r, r.x, Region::kXStage, src), h);
    if (!p.backward) continue;
    copy_row(const_cast<Bf16*>(dy_rows(r, t.row).data) + at,
             home_row(r, r.dy, Region::kDyStage, src), h);
    r.region<float>(Region::kWeightRing)[r.ring_row(t.row) + i] = home_weight(r, src);
  }
}

}  // namespace monomoe::cpu
