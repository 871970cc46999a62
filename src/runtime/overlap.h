// Do two strided tensors share a byte? Exact, by a search over their index spaces.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "monomoe/tensor.h"

namespace monomoe {

/// Memory of a tensor: runs of `run` bytes at begin + sum of i * step, 0 <= i <= last, over
/// `terms`.
struct Footprint {
  struct Term {
    int64_t step;  // bytes, > 0
    int64_t last;  // > 0
  };
  int64_t begin{0};
  int64_t run{0};
  std::vector<Term> terms;

  /// A tensor with elements.
  static Footprint of(const Tensor& t, int64_t item_bytes) {
    Footprint f{reinterpret_cast<intptr_t>(t.data), item_bytes, {}};
    for (size_t d{0}; d < static_cast<size_t>(t.ndim); ++d) {
      const int64_t step{t.stride[d] * item_bytes};
      const int64_t last{t.shape[d] - 1};
      if (last == 0 || step == 0) continue;
      if (step < 0) f.begin += step * last;
      f.terms.push_back({std::max(step, -step), last});
    }
    std::sort(f.terms.begin(), f.terms.end(), [](Term a, Term b) { return a.step < b.step; });
    while (!f.terms.empty() && f.terms.front().step <= f.run) {  // runs that follow each other
      f.run += f.terms.front().step * f.terms.front().last;
      f.terms.erase(f.terms.begin());
    }
    return f;
  }

  /// The first byte of the last run.
  [[nodiscard]] int64_t end_run() const {
    int64_t at{begin};
    for (const Term& t : terms) at += t.step * t.last;
    return at;
  }
};

namespace detail {

/// Is a sum of k * step, 0 <= k <= last, of terms[at..] in [lo, hi]? `terms` fall by step. True
/// also when `budget` steps of search did not tell.
inline bool reaches(const std::vector<Footprint::Term>& terms, size_t at, int64_t lo, int64_t hi,
                    int64_t* budget) {
  int64_t most{0};    // of terms[at..]
  int64_t common{0};  // divisor
  for (size_t i{at}; i < terms.size(); ++i) {
    most += terms[i].step * terms[i].last;
    common = std::gcd(common, terms[i].step);
  }
  lo = std::max<int64_t>(lo, 0);
  hi = std::min(hi, most);
  if (lo > hi) return false;
  if (at == terms.size()) return true;
  if ((lo + common - 1) / common > hi / common) return false;  // no multiple in between
  const auto [step, last] = terms[at];
  if (at + 1 == terms.size()) return true;  // that multiple is it
  const int64_t rest{most - step * last};
  const int64_t first{lo > rest ? (lo - rest + step - 1) / step : 0};
  for (int64_t k{first}; k <= std::min(last, hi / step); ++k) {
    if (--*budget < 0) return true;
    if (reaches(terms, at + 1, lo - k * step, hi - k * step, budget)) return true;
  }
  return false;
}

}  // namespace detail

/// Do `a` and `b` share a byte? For layouts so odd that a long search does not tell: true.
inline bool share_memory(const Footprint& a, const Footprint& b) {
  // a's run begins at a.begin + i, b's at b.end_run() - j, with i and j sums of the terms. They
  // meet if i + j is within a run's length of the difference.
  const int64_t apart{b.end_run() - a.begin};
  std::vector<Footprint::Term> terms{a.terms};
  for (const Footprint::Term& t : b.terms) {
    const auto equal = std::find_if(terms.begin(), terms.end(),
                                    [&](const auto& other) { return other.step == t.step; });
    if (equal == terms.end()) {
      terms.push_back(t);
    } else {
      equal->last += t.last;
    }
  }
  std::sort(terms.begin(), terms.end(),
            [](const auto& x, const auto& y) { return x.step > y.step; });
  int64_t budget{1 << 16};
  return detail::reaches(terms, 0, apart - (a.run - 1), apart + (b.run - 1), &budget);
}

}  // namespace monomoe
