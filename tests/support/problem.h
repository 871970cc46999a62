// A layer problem for tests: random inputs, one call through the public interface, all results.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "monomoe/monomoe.h"

namespace monomoe::testing {

/// Sizes and circumstances; the name tells them apart in a failure.
struct Case {
  int64_t tokens{33};
  int64_t hidden{64};
  int64_t inter{40};
  int64_t experts{5};
  int64_t top_k{2};
  int64_t shared{0};
  bool score{false};
  std::optional<double> limit{};
  double skip{0.1};  // share of -1 routes
  bool integers{false};
  bool skewed{false};  // most routes go to expert 0
  uint64_t seed{1};
  Device device{};
};

/// 64-byte aligned storage.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t n) : words_(static_cast<size_t>(n) * sizeof(T) / 16 + 8), size_{n} {}
  T* data() { return reinterpret_cast<T*>(words_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(words_.data()); }
  [[nodiscard]] int64_t size() const { return size_; }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }
  void fill(uint8_t byte) { std::memset(words_.data(), byte, words_.size() * 16); }
  friend bool operator==(const Buffer& a, const Buffer& b) {
    if (a.size_ != b.size_) return false;
    return a.size_ == 0 ||
           std::memcmp(a.data(), b.data(), static_cast<size_t>(a.size_) * sizeof(T)) == 0;
  }

 private:
  struct alignas(16) Word {
    unsigned char bytes[16];
  };
  std::vector<Word> words_;
  int64_t size_{0};
};

struct Problem {
  Case c;
  Buffer<Bf16> x, dy, gate, up, down, shared_gate, shared_up, shared_down, shared_score;
  Buffer<float> topk_weights;
  Buffer<int32_t> ids;

  explicit Problem(const Case& which) : c{which} {
    std::mt19937_64 random{c.seed};
    const auto fill = [&](Buffer<Bf16>* b, int64_t n, double scale) {
      *b = Buffer<Bf16>{n};
      std::normal_distribution<float> normal{0.0F, static_cast<float>(scale)};
      std::uniform_int_distribution<int> integer{-2, 2};
      for (int64_t i{0}; i < n; ++i) {
        (*b)[i] = to_bf16(c.integers ? static_cast<float>(integer(random)) : normal(random));
      }
    };
    const double by_h{1.0 / std::sqrt(static_cast<double>(c.hidden))};
    const double by_i{1.0 / std::sqrt(static_cast<double>(c.inter))};
    fill(&x, c.tokens * c.hidden, 1.0);
    fill(&dy, c.tokens * c.hidden, 1.0);
    fill(&gate, c.experts * c.inter * c.hidden, by_h);
    fill(&up, c.experts * c.inter * c.hidden, by_h);
    fill(&down, c.experts * c.inter * c.hidden, by_i);
    fill(&shared_gate, c.shared * c.hidden, by_h);
    fill(&shared_up, c.shared * c.hidden, by_h);
    fill(&shared_down, c.shared * c.hidden, by_i);
    fill(&shared_score, c.hidden, by_h);
    topk_weights = Buffer<float>{c.tokens * c.top_k};
    ids = Buffer<int32_t>{c.tokens * c.top_k};
    std::uniform_real_distribution<float> weight{-0.5F, 1.0F};
    std::uniform_real_distribution<double> chance{0.0, 1.0};
    for (int64_t i{0}; i < ids.size(); ++i) {
      topk_weights[i] = chance(random) < 0.05 ? 0.0F : weight(random);
      const bool hot{c.skewed && chance(random) < 0.8};
      ids[i] = chance(random) < c.skip
                   ? -1
                   : (hot ? 0 : static_cast<int32_t>(random() % static_cast<uint64_t>(c.experts)));
    }
  }

  /// As `contiguous`, on the case's device.
  template <class... Extents>
  [[nodiscard]] Tensor tensor(void* data, DType dtype, Extents... extents) const {
    Tensor t{contiguous(data, dtype, extents...)};
    t.device = c.device;
    return t;
  }
  [[nodiscard]] WeightTensors weights() {
    WeightTensors w;
    w.gate = tensor(gate.data(), DType::kBf16, c.experts, c.inter, c.hidden);
    w.up = tensor(up.data(), DType::kBf16, c.experts, c.inter, c.hidden);
    w.down = tensor(down.data(), DType::kBf16, c.experts, c.hidden, c.inter);
    if (c.shared > 0) {
      w.shared_gate = tensor(shared_gate.data(), DType::kBf16, c.shared, c.hidden);
      w.shared_up = tensor(shared_up.data(), DType::kBf16, c.shared, c.hidden);
      w.shared_down = tensor(shared_down.data(), DType::kBf16, c.hidden, c.shared);
      if (c.score) w.shared_score = tensor(shared_score.data(), DType::kBf16, c.hidden);
    }
    return w;
  }
  [[nodiscard]] Tensor x_tensor() { return tensor(x.data(), DType::kBf16, c.tokens, c.hidden); }
  [[nodiscard]] Tensor dy_tensor() { return tensor(dy.data(), DType::kBf16, c.tokens, c.hidden); }
  [[nodiscard]] Tensor weight_tensor() {
    return tensor(topk_weights.data(), DType::kF32, c.tokens, c.top_k);
  }
};

/// Outputs of forward and backward, weight gradients as fp32 unless said otherwise.
struct Results {
  Buffer<Bf16> y, dx;
  Buffer<float> dtopk_weights;
  Buffer<float> gate, up, down;  // routed
  Buffer<float> shared_gate, shared_up, shared_down, shared_score;

  /// The bits that the number of ranks must not change.
  [[nodiscard]] bool same_routed(const Results& o) const {
    return y == o.y && dx == o.dx && dtopk_weights == o.dtopk_weights && gate == o.gate &&
           up == o.up && down == o.down;
  }
  [[nodiscard]] bool same(const Results& o) const {
    return same_routed(o) && shared_gate == o.shared_gate && shared_up == o.shared_up &&
           shared_down == o.shared_down && shared_score == o.shared_score;
  }
};

/// A forward whose backward may come later, as often as wanted.
struct Step {
  Buffer<int32_t> tables;
  Buffer<uint8_t> saved;
  Schedule schedule;
  Config config;
};

/// What both passes read.
template <class Args>
Args inputs_of(Problem& p, const Step& s) {
  Args a;
  a.x = p.x_tensor();
  a.topk_weights = p.weight_tensor();
  a.weights = p.weights();
  a.schedule = s.schedule;
  a.config = s.config;
  a.swiglu_limit = p.c.limit;
  return a;
}
inline ForwardArgs forward_inputs(Problem& p, const Step& s) {
  return inputs_of<ForwardArgs>(p, s);
}
inline BackwardArgs backward_inputs(Problem& p, Step& s) {
  auto a = inputs_of<BackwardArgs>(p, s);
  a.dy = p.dy_tensor();
  a.saved = p.tensor(s.saved.data(), DType::kU8, s.saved.size());
  return a;
}

inline Step start(Problem& p, Group& g, const Config& config, Buffer<Bf16>* y,
                  std::vector<int64_t> tokens_per_rank = {}, uint8_t fill = 0xFF) {
  Step s;
  const Case& c{p.c};
  s.config = config;
  s.config.weight_grad = WeightGrad::kF32;
  s.tables = Buffer<int32_t>{schedule_words(g, c.tokens, c.experts, c.top_k)};
  s.tables.fill(fill);
  s.schedule.tables = p.tensor(s.tables.data(), DType::kI32, s.tables.size());
  s.schedule.experts = c.experts;
  s.schedule.top_k = c.top_k;
  s.schedule.tokens_per_rank =
      tokens_per_rank.empty() ? split_tokens(c.tokens, g.ranks()) : tokens_per_rank;
  schedule(g, p.tensor(p.ids.data(), DType::kI32, c.tokens, c.top_k), s.schedule);
  s.saved = Buffer<uint8_t>{saved_bytes(
      g, {c.tokens, c.hidden, c.inter, c.experts, c.top_k, c.shared, g.ranks()}, s.config)};
  s.saved.fill(fill);
  *y = Buffer<Bf16>{c.tokens * c.hidden};
  y->fill(fill);
  ForwardArgs a{forward_inputs(p, s)};
  a.y = p.tensor(y->data(), DType::kBf16, c.tokens, c.hidden);
  a.saved = p.tensor(s.saved.data(), DType::kU8, s.saved.size());
  forward(g, a);
  return s;
}

inline void finish(Problem& p, Group& g, Step& s, Results* r, uint8_t fill = 0xFF,
                   bool accumulate = false) {
  const Case& c{p.c};
  const auto grad = [&](Buffer<float>* b, auto... extents) {
    if (!accumulate) {
      *b = Buffer<float>{(int64_t{1} * ... * extents)};
      b->fill(fill);
    }
    return p.tensor(b->data(), DType::kF32, extents...);
  };
  r->dx = Buffer<Bf16>{c.tokens * c.hidden};
  r->dx.fill(fill);
  r->dtopk_weights = Buffer<float>{c.tokens * c.top_k};
  r->dtopk_weights.fill(fill);
  BackwardArgs a{backward_inputs(p, s)};
  a.dx = p.tensor(r->dx.data(), DType::kBf16, c.tokens, c.hidden);
  a.dtopk_weights = p.tensor(r->dtopk_weights.data(), DType::kF32, c.tokens, c.top_k);
  a.grads.gate = grad(&r->gate, c.experts, c.inter, c.hidden);
  a.grads.up = grad(&r->up, c.experts, c.inter, c.hidden);
  a.grads.down = grad(&r->down, c.experts, c.hidden, c.inter);
  if (c.shared > 0) {
    a.grads.shared_gate = grad(&r->shared_gate, c.shared, c.hidden);
    a.grads.shared_up = grad(&r->shared_up, c.shared, c.hidden);
    a.grads.shared_down = grad(&r->shared_down, c.hidden, c.shared);
    if (c.score) a.grads.shared_score = grad(&r->shared_score, c.hidden);
  }
  a.accumulate = accumulate;
  backward(g, a);
}

inline Results solve(Problem& p, Group& g, const Config& config = {},
                     const std::vector<int64_t>& tokens_per_rank = {}, uint8_t fill = 0xFF) {
  Results r;
  Step s{start(p, g, config, &r.y, tokens_per_rank, fill)};
  finish(p, g, s, &r, fill);
  return r;
}

}  // namespace monomoe::testing
