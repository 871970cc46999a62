// One GEMM task: product and epilogue. The twin of a GPU's compute role.
#pragma once

#include <cstdint>

#include "arch/cpu/epilogue.h"
#include "arch/cpu/load.h"
#include "arch/cpu/mma.h"

namespace monomoe::cpu {

inline void gate_up(const RankLaunch& r, const RowTile& t, int32_t n, Scratch& s) {
  const int32_t half{r.plan.tile.cols / 2};
  const int32_t cols{cols_in_tile(t.inter, half, n)};
  const int32_t first{n * half};
  s.clear();
  multiply_add(
      s, {t.x.data, t.x.row}, t.rows,
      {{{t.gate.at(first), t.gate.row}, cols, 0}, {{t.up.at(first), t.up.row}, cols, s.ld / 2}},
      r.plan.dims.hidden);
  store_gate_up(r, t, first, cols, s);
}

inline void down(const RankLaunch& r, const RowTile& t, int32_t n, Scratch& s) {
  const int32_t cols{cols_in_tile(r.plan.dims.hidden, r.plan.tile.cols, n)};
  s.clear();
  multiply_add(s, {t.act, t.inter}, t.rows,
               {{{t.down.at(int64_t{n} * r.plan.tile.cols), t.down.row}, cols, 0}}, t.inter);
}

inline void dgrad_down(const RankLaunch& r, const RowTile& t, int32_t n, Scratch& s) {
  const int32_t cols{cols_in_tile(t.inter, r.plan.tile.cols, n)};
  const int32_t first{n * r.plan.tile.cols};
  s.clear();
  multiply_add(s, {t.dy.data, t.dy.row}, t.rows,
               {{{t.down.data + first, t.down.row, false}, cols, 0}}, r.plan.dims.hidden);
  store_dgrad_down(r, t, n, first, cols, s);
}

inline void dgrad_gate_up(const RankLaunch& r, const RowTile& t, int32_t n, Scratch& s) {
  const int32_t cols{cols_in_tile(r.plan.dims.hidden, r.plan.tile.cols, n)};
  const int64_t first{int64_t{n} * r.plan.tile.cols};
  const int64_t ld{int64_t{2} * t.inter};
  s.clear();
  multiply_add(s, {t.grad, ld}, t.rows, {{{t.gate.data + first, t.gate.row, false}, cols, 0}},
               t.inter);
  multiply_add(s, {t.grad + t.inter, ld}, t.rows, {{{t.up.data + first, t.up.row, false}, cols, 0}},
               t.inter);
}

/// Adds the products of `depth` rows of a row tile.
inline void wgrad_rows(const RowTile& t, const WgradTile& w, int32_t depth, Scratch& s) {
  if (w.gate_up) {
    multiply_add(s, {t.grad + int64_t{w.which} * t.inter + w.row0, int64_t{2} * t.inter, false},
                 w.rows, {{{t.x.data + w.col0, t.x.row, false}, w.cols, 0}}, depth);
  } else {
    multiply_add(s, {t.dy.data + w.row0, t.dy.row, false}, w.rows,
                 {{{t.act + w.col0, t.inter, false}, w.cols, 0}}, depth);
  }
}

inline void wgrad(const RankLaunch& r, const Task& t, Scratch& s) {
  const Plan& p{r.plan};
  const bool is_gate_up{t.kind == Kind::kWgradGateUp};
  const WgradTile w{wgrad_tile(p, is_gate_up, p.dims.inter, t.row, t.col)};
  float* spilled{t.pass < 0 ? nullptr
                            : r.region<float>(Region::kSpill) +
                                  int64_t{wgrad_index(p, t)} * p.tile.rows * p.tile.cols};
  s.clear();
  if (!t.first) load_tile(s, w.rows, w.cols, spilled, p.tile.cols);
  for (int32_t n{t.chunk.begin}; n < t.chunk.end; ++n) {
    Task at{t};
    at.row = n;
    const RowTile rows{routed_tile(r, at)};
    wgrad_rows(rows, w, rows.padded, s);
  }
  if (!t.last) {
    store_tile(s, w.rows, w.cols, spilled, p.tile.cols);
    return;
  }
  const GradOut& out{is_gate_up ? (w.which == 0 ? r.grads.gate : r.grads.up) : r.grads.down};
  store_grad(r, out, t.expert, w.row0, w.rows, w.col0, w.cols, s);
}

inline void shared_wgrad(const RankLaunch& r, const Task& t, Scratch& s) {
  const Plan& p{r.plan};
  const bool is_gate_up{t.kind == Kind::kSharedWgradGateUp};
  const WgradTile w{wgrad_tile(p, is_gate_up, p.dims.shared, t.row, t.col)};
  s.clear();
  for (int32_t m{0}; m < p.token_tiles(); ++m) {
    Task at{t};
    at.row = m;
    const RowTile rows{shared_tile(r, at)};
    wgrad_rows(rows, w, rows.rows, s);
  }
  const GradOut& out{is_gate_up ? (w.which == 0 ? r.grads.shared_gate : r.grads.shared_up)
                                : r.grads.shared_down};
  if (chain_shared(r, t, w.rows, w.cols, s)) {
    store_grad(r, out, 0, w.row0, w.rows, w.col0, w.cols, s);
  }
}

/// Tokens ascending, one column tile of w_score's gradient.
inline void shared_wgrad_score(const RankLaunch& r, const Task& t, Scratch& s) {
  const Plan& p{r.plan};
  const int32_t first{t.col * p.tile.cols};
  const int32_t cols{cols_in_tile(p.dims.hidden, p.tile.cols, t.col)};
  const float* dscore{r.region<float>(Region::kDscore)};
  s.clear();
  for (int32_t token{0}; token < p.dims.tokens; ++token) {
    const Bf16* x{r.x.at(token) + first};
    for (int32_t c{0}; c < cols; ++c) {
      s.acc[static_cast<size_t>(c)] += dscore[token] * to_float(x[c]);
    }
  }
  if (chain_shared(r, t, 1, cols, s)) store_grad(r, r.grads.shared_score, 0, 0, 1, first, cols, s);
}

/// score[t] = x[t] . w_score for one token tile.
inline void shared_score(const RankLaunch& r, const Task& t) {
  const RowTile tile{shared_tile(r, t)};
  float* score{r.saved_region<float>(r.saved_layout.score) + int64_t{t.row} * r.plan.tile.rows};
  for (int32_t i{0}; i < tile.rows; ++i) {
    const Bf16* x{tile.x.at(i)};
    float sum{0.0F};
    for (int32_t h{0}; h < r.plan.dims.hidden; ++h) {
      sum += to_float(x[h]) * to_float(r.weights.shared_score[h]);
    }
    score[i] = sum;
  }
}

inline void shared_dscore(const RankLaunch& r, const Task& t) {
  const RowTile tile{shared_tile(r, t)};
  float* dscore{r.region<float>(Region::kDscore) + int64_t{t.row} * r.plan.tile.rows};
  for (int32_t i{0}; i < tile.rows; ++i) {
    const float sigma{HostSigmoid{}(tile.score[i])};
    dscore[i] = sigma * (1.0F - sigma) * sum_partials(tile, i);
  }
}

}  // namespace monomoe::cpu
