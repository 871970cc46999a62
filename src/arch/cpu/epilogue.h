// What becomes of accumulators: rounding, activation, stores.
#pragma once

#include <cstdint>

#include "arch/cpu/load.h"
#include "arch/cpu/mma.h"
#include "task/gate_up.h"
#include "task/numerics.h"

namespace monomoe::cpu {

inline void zero_rows(Bf16* dst, int64_t ld, int32_t begin, int32_t end, int32_t cols) {
  for (int32_t i{begin}; i < end; ++i) {
    std::memset(dst + i * ld, 0, sizeof(Bf16) * static_cast<size_t>(cols));
  }
}

/// fp32 tiles of spills and chains: [tile rows, ld].
inline void store_tile(const Scratch& s, int32_t rows, int32_t cols, float* dst, int32_t ld) {
  for (int32_t i{0}; i < rows; ++i) {
    std::memcpy(dst + int64_t{i} * ld, s.acc.data() + int64_t{i} * s.ld,
                sizeof(float) * static_cast<size_t>(cols));
  }
}

inline void load_tile(Scratch& s, int32_t rows, int32_t cols, const float* src, int32_t ld) {
  for (int32_t i{0}; i < rows; ++i) {
    std::memcpy(s.acc.data() + int64_t{i} * s.ld, src + int64_t{i} * ld,
                sizeof(float) * static_cast<size_t>(cols));
  }
}

/// Adds this rank's sum of a shared gradient to the chain. True: it was the last rank, and the
/// accumulators hold the whole sum.
inline bool chain_shared(const RankLaunch& r, const Task& t, int32_t rows, int32_t cols,
                         Scratch& s) {
  const Plan& p{r.plan};
  if (!p.chain_shared) return true;
  const int32_t ld{p.tile.cols};
  float* chain{r.chain + int64_t{shared_wgrad_index(p, t)} * p.tile.rows * ld};
  if (p.dims.rank > 0) {
    for (int32_t i{0}; i < rows; ++i) {
      for (int32_t c{0}; c < cols; ++c) {
        float& sum{
            s.acc[static_cast<size_t>(i) * static_cast<size_t>(s.ld) + static_cast<size_t>(c)]};
        sum = chain[int64_t{i} * ld + c] + sum;
      }
    }
  }
  if (p.dims.rank + 1 == p.dims.ranks) return true;
  store_tile(s, rows, cols, chain, ld);
  return false;
}

inline void store_grad(const RankLaunch& r, const GradOut& out, int32_t matrix, int32_t row0,
                       int32_t rows, int32_t col0, int32_t cols, const Scratch& s) {
  for (int32_t i{0}; i < rows; ++i) {
    const float* acc{s.acc.data() + int64_t{i} * s.ld};
    const int64_t at{matrix * out.matrix + (row0 + i) * out.row + col0};
    switch (r.grads.store) {
      case GradStore::kBf16:
        for (int32_t c{0}; c < cols; ++c) static_cast<Bf16*>(out.data)[at + c] = to_bf16(acc[c]);
        break;
      case GradStore::kF32:
        for (int32_t c{0}; c < cols; ++c) static_cast<float*>(out.data)[at + c] = acc[c];
        break;
      case GradStore::kAddF32:
        for (int32_t c{0}; c < cols; ++c) static_cast<float*>(out.data)[at + c] += acc[c];
        break;
    }
  }
}

/// Router weight of row `i`: what scales the gradient of its activation.
inline float row_weight(const RowTile& t, int32_t i) {
  if (t.weight != nullptr) return t.weight[i];
  return t.score != nullptr ? HostSigmoid{}(t.score[i]) : 1.0F;
}

/// gate, up -> bf16 -> kept; forward: a -> bf16.
inline void store_gate_up(const RankLaunch& r, const RowTile& t, int32_t first, int32_t cols,
                          const Scratch& s) {
  const bool forward{!r.plan.backward};
  for (int32_t i{0}; i < t.rows; ++i) {
    const float* gate{s.acc.data() + int64_t{i} * s.ld};
    const float* up{gate + s.ld / 2};
    for (int32_t c{0}; c < cols; ++c) {
      const Bf16 g{to_bf16(gate[c])};
      const Bf16 u{to_bf16(up[c])};
      if (t.preact != nullptr) {
        t.preact[preact_index(t.preact_row + i, first + c, 0, t.inter)] = g;
        t.preact[preact_index(t.preact_row + i, first + c, 1, t.inter)] = u;
      }
      if (forward) {
        t.act[int64_t{i} * t.inter + first + c] =
            to_bf16(swiglu(to_float(g), to_float(u), r.clamp, HostSigmoid{}));
      }
    }
  }
  if (forward) zero_rows(t.act + first, t.inter, t.rows, t.padded, cols);
}

/// dA' -> dgate, dup, w * a and the partial router gradient of column tile `n`.
inline void store_dgrad_down(const RankLaunch& r, const RowTile& t, int32_t n, int32_t first,
                             int32_t cols, const Scratch& s) {
  const int64_t ld{int64_t{2} * t.inter};
  for (int32_t i{0}; i < t.rows; ++i) {
    const float* da{s.acc.data() + int64_t{i} * s.ld};
    const float w{row_weight(t, i)};
    Bf16* dgate{t.grad + i * ld + first};
    Bf16* act{t.act + int64_t{i} * t.inter + first};
    float partial{0.0F};
    for (int32_t c{0}; c < cols; ++c) {
      const float g{to_float(t.preact[preact_index(t.preact_row + i, first + c, 0, t.inter)])};
      const float u{to_float(t.preact[preact_index(t.preact_row + i, first + c, 1, t.inter)])};
      const SwigluGrad d{swiglu_grad(g, u, r.clamp, HostSigmoid{})};
      const float a{round_bf16(d.act)};
      partial += da[c] * a;
      dgate[c] = to_bf16(w * da[c] * d.dgate);
      dgate[t.inter + c] = to_bf16(w * da[c] * d.dup);
      act[c] = to_bf16(w * a);
    }
    t.partials[int64_t{i} * t.col_tiles + n] = partial;
  }
  zero_rows(t.act + first, t.inter, t.rows, t.padded, cols);
  zero_rows(t.grad + first, ld, t.rows, t.padded, cols);
  zero_rows(t.grad + t.inter + first, ld, t.rows, t.padded, cols);
}

/// The router gradient of row `i`, column tiles ascending.
inline float sum_partials(const RowTile& t, int32_t i) {
  float sum{0.0F};
  for (int32_t n{0}; n < t.col_tiles; ++n) sum += t.partials[int64_t{i} * t.col_tiles + n];
  return sum;
}

/// Row segments -> bf16 -> the rows' slots at their homes.
inline void push_rows(const RankLaunch& r, const RowTile& t, const Task& task, const Scratch& s) {
  const Plan& p{r.plan};
  const int64_t h{p.dims.hidden};
  const int64_t first{int64_t{task.col} * p.tile.cols};
  const int32_t cols{cols_in_tile(p.dims.hidden, p.tile.cols, task.col)};
  for (int32_t i{0}; i < t.rows; ++i) {
    const RowSource src{p.tables.row_src[int64_t{task.row} * p.tile.rows + i]};
    Bf16* slot{r.heap_region<Bf16>(src.home, Region::kSlots) + src.slot * h + first};
    const float* acc{s.acc.data() + int64_t{i} * s.ld};
    for (int32_t c{0}; c < cols; ++c) slot[c] = to_bf16(acc[c]);
  }
}

/// Router gradients of a row tile -> slot scalars at the homes.
inline void push_scalars(const RankLaunch& r, const RowTile& t, const Task& task) {
  for (int32_t i{0}; i < t.rows; ++i) {
    const RowSource src{r.plan.tables.row_src[int64_t{task.row} * r.plan.tile.rows + i]};
    r.heap_region<float>(src.home, Region::kSlotScalars)[src.slot] = sum_partials(t, i);
  }
}

/// Row segments of the shared expert -> bf16 -> shared_out.
inline void store_shared_out(const RankLaunch& r, const RowTile& t, const Task& task,
                             const Scratch& s) {
  const Plan& p{r.plan};
  const int64_t h{p.dims.hidden};
  const int32_t cols{cols_in_tile(p.dims.hidden, p.tile.cols, task.col)};
  Bf16* out{r.region<Bf16>(Region::kSharedOut) + int64_t{task.row} * p.tile.rows * h +
            int64_t{task.col} * p.tile.cols};
  for (int32_t i{0}; i < t.rows; ++i) {
    const float* acc{s.acc.data() + int64_t{i} * s.ld};
    for (int32_t c{0}; c < cols; ++c) out[i * h + c] = to_bf16(acc[c]);
  }
}

}  // namespace monomoe::cpu
