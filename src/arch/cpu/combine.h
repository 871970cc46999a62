// The sum over slots of one block of tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "arch/cpu/load.h"
#include "arch/cpu/rank.h"
#include "task/numerics.h"

namespace monomoe::cpu {

inline void add_row(std::vector<float>& acc, float scale, const Bf16* row) {
  for (size_t h{0}; h < acc.size(); ++h) acc[h] += scale * to_float(row[h]);
}

inline void combine(const RankLaunch& r, const Task& t) {
  const Plan& p{r.plan};
  const Dims& d{p.dims};
  const Bf16* slots{r.heap_region<Bf16>(d.rank, Region::kSlots)};
  const float* scalars{r.heap_region<float>(d.rank, Region::kSlotScalars)};
  const Bf16* shared{r.region<Bf16>(Region::kSharedOut)};
  const float* score{r.saved_region<float>(r.saved_layout.score)};
  const float* dscore{r.region<float>(Region::kDscore)};
  std::vector<float> acc(static_cast<size_t>(d.hidden));
  const int32_t end{min_of(d.tokens, (t.row + 1) * p.tile.sum_tokens)};
  for (int32_t token{t.row * p.tile.sum_tokens}; token < end; ++token) {
    acc.assign(acc.size(), 0.0F);
    for (int32_t k{0}; k < d.top_k; ++k) {
      const int64_t slot{int64_t{token} * d.top_k + k};
      const bool routed{p.tables.ids[slot] >= 0};
      if (routed) {
        add_row(acc, p.backward ? 1.0F : r.topk_weights.at(token, k), slots + slot * d.hidden);
      }
      if (p.backward && r.dtopk_weights.data != nullptr) {
        r.dtopk_weights.at(token, k) = routed ? scalars[slot] : 0.0F;
      }
    }
    if (d.shared > 0) {
      const bool scaled{d.score && !p.backward};
      add_row(acc, scaled ? HostSigmoid{}(score[token]) : 1.0F, shared + int64_t{token} * d.hidden);
      if (d.score && p.backward) add_row(acc, dscore[token], r.weights.shared_score);
    }
    if (r.y == nullptr) continue;
    Bf16* y{r.y + token * r.y_row};
    for (int32_t h{0}; h < d.hidden; ++h) y[h] = to_bf16(acc[static_cast<size_t>(h)]);
  }
}

}  // namespace monomoe::cpu
