// A plain reference of the layer, templated on the arithmetic: double without rounding is the
// truth, float with the rounding points done naively is the twin of the error rule.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/problem.h"

namespace monomoe::testing {

template <class Real>
struct Oracle {
  std::vector<Real> y, dx, dtopk_weights, gate, up, down;
  std::vector<Real> shared_gate, shared_up, shared_down, shared_score;
};

/// `kRound`: apply the bf16 rounding points of docs/numerics.md.
template <class Real, bool kRound>
class Reference {
 public:
  explicit Reference(const Problem& problem) : p_{problem}, c_{problem.c} {}

  Oracle<Real> solve() {
    const auto n = [](int64_t v) { return static_cast<size_t>(v); };
    o_.y.assign(n(c_.tokens * c_.hidden), 0);
    o_.dx.assign(n(c_.tokens * c_.hidden), 0);
    o_.dtopk_weights.assign(n(c_.tokens * c_.top_k), 0);
    for (auto* g : {&o_.gate, &o_.up, &o_.down}) {
      g->assign(n(c_.experts * c_.inter * c_.hidden), 0);
    }
    for (auto* g : {&o_.shared_gate, &o_.shared_up, &o_.shared_down}) {
      g->assign(n(c_.shared * c_.hidden), 0);
    }
    o_.shared_score.assign(n(c_.hidden), 0);
    for (int64_t t{0}; t < c_.tokens; ++t) token(t);
    return o_;
  }

 private:
  using Vec = std::vector<Real>;

  static Real round(Real v) {
    return kRound ? static_cast<Real>(round_bf16(static_cast<float>(v))) : v;
  }
  static Real value(Bf16 v) { return static_cast<Real>(to_float(v)); }
  static Real sigmoid(Real v) { return Real{1} / (Real{1} + std::exp(-v)); }

  /// One expert on one token with router weight w; returns <dA', a>.
  Real expert(int64_t t, Real w, int64_t inter, const Bf16* wg, const Bf16* wu, const Bf16* wd,
              Real* gg, Real* gu, Real* gd, Vec* out, Vec* dout) {
    const int64_t h_n{c_.hidden};
    const Bf16* x{p_.x.data() + t * h_n};
    const Bf16* dy{p_.dy.data() + t * h_n};
    const Real limit{c_.limit ? static_cast<Real>(*c_.limit)
                              : std::numeric_limits<Real>::infinity()};
    Vec act(static_cast<size_t>(inter));
    Real dot{0};
    Vec dgate(act.size());
    Vec dup(act.size());
    for (int64_t i{0}; i < inter; ++i) {
      Real g{0};
      Real u{0};
      for (int64_t h{0}; h < h_n; ++h) {
        g += value(x[h]) * value(wg[i * h_n + h]);
        u += value(x[h]) * value(wu[i * h_n + h]);
      }
      g = round(g);
      u = round(u);
      const Real gc{std::min(g, limit)};
      const Real uc{std::max(-limit, std::min(u, limit))};
      const Real s{sigmoid(gc)};
      const auto at = static_cast<size_t>(i);
      act[at] = round(gc * s * uc);
      Real da{0};
      for (int64_t h{0}; h < h_n; ++h) da += value(dy[h]) * value(wd[h * inter + i]);
      dot += da * act[at];
      dgate[at] = g <= limit ? round(w * da * (uc * (s * (1 + gc * (1 - s))))) : 0;
      dup[at] = std::abs(u) <= limit ? round(w * da * (gc * s)) : 0;
    }
    for (int64_t h{0}; h < h_n; ++h) {
      Real sum{0};
      for (int64_t i{0}; i < inter; ++i) {
        sum += act[static_cast<size_t>(i)] * value(wd[h * inter + i]);
        gd[h * inter + i] += value(dy[h]) * round(w * act[static_cast<size_t>(i)]);
      }
      (*out)[static_cast<size_t>(h)] = round(sum);
      Real d{0};
      for (int64_t i{0}; i < inter; ++i) {
        d += dgate[static_cast<size_t>(i)] * value(wg[i * h_n + h]) +
             dup[static_cast<size_t>(i)] * value(wu[i * h_n + h]);
        gg[i * h_n + h] += dgate[static_cast<size_t>(i)] * value(x[h]);
        gu[i * h_n + h] += dup[static_cast<size_t>(i)] * value(x[h]);
      }
      (*dout)[static_cast<size_t>(h)] = round(d);
    }
    return dot;
  }

  void token(int64_t t) {
    const int64_t h_n{c_.hidden};
    const int64_t size{c_.inter * h_n};
    Vec y(static_cast<size_t>(h_n));
    Vec dx(y.size());
    Vec out(y.size());
    Vec dout(y.size());
    for (int64_t k{0}; k < c_.top_k; ++k) {
      const int64_t e{p_.ids[t * c_.top_k + k]};
      if (e < 0) continue;
      const Real w{static_cast<Real>(p_.topk_weights[t * c_.top_k + k])};
      o_.dtopk_weights[static_cast<size_t>(t * c_.top_k + k)] =
          expert(t, w, c_.inter, p_.gate.data() + e * size, p_.up.data() + e * size,
                 p_.down.data() + e * size, o_.gate.data() + e * size, o_.up.data() + e * size,
                 o_.down.data() + e * size, &out, &dout);
      for (size_t h{0}; h < y.size(); ++h) {
        y[h] += w * out[h];
        dx[h] += dout[h];
      }
    }
    if (c_.shared > 0) shared(t, &y, &dx);
    for (size_t h{0}; h < y.size(); ++h) {
      o_.y[static_cast<size_t>(t * h_n) + h] = round(y[h]);
      o_.dx[static_cast<size_t>(t * h_n) + h] = round(dx[h]);
    }
  }

  void shared(int64_t t, Vec* y, Vec* dx) {
    const int64_t h_n{c_.hidden};
    Vec out(y->size());
    Vec dout(y->size());
    Real score{0};
    for (int64_t h{0}; h < h_n; ++h) score += value(p_.x[t * h_n + h]) * value(p_.shared_score[h]);
    const Real sigma{c_.score ? sigmoid(score) : Real{1}};
    const Real dot{expert(t, sigma, c_.shared, p_.shared_gate.data(), p_.shared_up.data(),
                          p_.shared_down.data(), o_.shared_gate.data(), o_.shared_up.data(),
                          o_.shared_down.data(), &out, &dout)};
    const Real dscore{c_.score ? sigma * (1 - sigma) * dot : Real{0}};
    for (int64_t h{0}; h < h_n; ++h) {
      const auto i = static_cast<size_t>(h);
      (*y)[i] += sigma * out[i];
      (*dx)[i] += dout[i] + dscore * value(p_.shared_score[h]);
      o_.shared_score[i] += dscore * value(p_.x[t * h_n + h]);
    }
  }

  const Problem& p_;
  Case c_;
  Oracle<Real> o_;
};

/// Error of `got` by the rule of design: in max norm and in Frobenius norm at most twice the
/// twin's error, both against the truth, with a floor (2^-9 for bf16 outputs, 2^-16 for fp32).
/// Returns the larger ratio to what is allowed; <= 1 passes, NaN never does.
template <class Got>
double error_ratio(const Got& got, const std::vector<float>& twin, const std::vector<double>& truth,
                   double floor) {
  double max_ref{0};
  double max_got{0};
  double max_twin{0};
  double sum_ref{0};
  double sum_got{0};
  double sum_twin{0};
  for (size_t i{0}; i < truth.size(); ++i) {
    const double g{std::abs(got(i) - truth[i])};
    const double w{std::abs(static_cast<double>(twin[i]) - truth[i])};
    if (!(g < 1e300)) return std::numeric_limits<double>::infinity();
    max_ref = std::max(max_ref, std::abs(truth[i]));
    max_got = std::max(max_got, g);
    max_twin = std::max(max_twin, w);
    sum_ref += truth[i] * truth[i];
    sum_got += g * g;
    sum_twin += w * w;
  }
  if (max_got == 0) return 0;
  const double allowed_max{std::max(2 * max_twin, floor * max_ref)};
  const double allowed_sum{std::max(2 * std::sqrt(sum_twin), floor * std::sqrt(sum_ref))};
  if (allowed_max == 0) return std::numeric_limits<double>::infinity();
  return std::max(max_got / allowed_max, std::sqrt(sum_got) / allowed_sum);
}

}  // namespace monomoe::testing
