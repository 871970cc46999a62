// A small layer, forward and backward, through the public interface. Runs everything twice and
// checks that both runs give the same bits; exits with 1 if not.
#include <monomoe/monomoe.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <vector>

namespace {

using monomoe::contiguous;
using monomoe::DType;
using monomoe::Tensor;

constexpr int64_t kTokens{33};
constexpr int64_t kHidden{64};
constexpr int64_t kIntermediate{48};
constexpr int64_t kExperts{4};
constexpr int64_t kTopK{2};
constexpr int64_t kRanks{2};

/// bf16 is the upper half of an fp32; inputs are made to need no rounding.
using Bf16 = uint16_t;
float to_float(Bf16 bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16U); }

std::vector<Bf16> random_bf16(int64_t count, float scale, std::mt19937& generator) {
  std::normal_distribution<float> normal{0.0F, scale};
  std::vector<Bf16> values(static_cast<size_t>(count));
  for (Bf16& v : values) v = static_cast<Bf16>(std::bit_cast<uint32_t>(normal(generator)) >> 16U);
  return values;
}

double norm(const std::vector<Bf16>& values) {
  double sum{0.0};
  for (const Bf16 v : values) sum += double{to_float(v)} * double{to_float(v)};
  return std::sqrt(sum);
}

/// What a caller owns: inputs and weights.
struct Inputs {
  std::vector<Bf16> x, dy;           // [T, H]
  std::vector<int32_t> topk_ids;     // [T, K]
  std::vector<float> topk_weights;   // [T, K]
  std::vector<Bf16> gate, up, down;  // [E, I, H], [E, I, H], [E, H, I]
};

/// What the layer writes.
struct Outputs {
  std::vector<Bf16> y, dx;              // [T, H]
  std::vector<float> dtopk_weights;     // [T, K]
  std::vector<Bf16> dgate, dup, ddown;  // as the weights
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

bool same_bits(const Outputs& a, const Outputs& b) {
  return same_bits(a.y, b.y) && same_bits(a.dx, b.dx) &&
         same_bits(a.dtopk_weights, b.dtopk_weights) && same_bits(a.dgate, b.dgate) &&
         same_bits(a.dup, b.dup) && same_bits(a.ddown, b.ddown);
}

Inputs make_inputs() {
  std::mt19937 generator{7};
  const int64_t weight_count{kExperts * kIntermediate * kHidden};
  Inputs in;
  in.x = random_bf16(kTokens * kHidden, 1.0F, generator);
  in.dy = random_bf16(kTokens * kHidden, 1.0F, generator);
  in.gate = random_bf16(weight_count, 0.125F, generator);
  in.up = random_bf16(weight_count, 0.125F, generator);
  in.down = random_bf16(weight_count, 0.125F, generator);
  for (int64_t t{0}; t < kTokens; ++t) {
    in.topk_ids.push_back(static_cast<int32_t>(t % kExperts));
    in.topk_ids.push_back(t % 5 == 0 ? -1 : static_cast<int32_t>((t + 1) % kExperts));
    in.topk_weights.insert(in.topk_weights.end(), {0.75F, 0.25F});
  }
  return in;
}

monomoe::WeightTensors weight_tensors(std::vector<Bf16>& gate, std::vector<Bf16>& up,
                                      std::vector<Bf16>& down) {
  monomoe::WeightTensors w;
  w.gate = contiguous(gate.data(), DType::kBf16, kExperts, kIntermediate, kHidden);
  w.up = contiguous(up.data(), DType::kBf16, kExperts, kIntermediate, kHidden);
  w.down = contiguous(down.data(), DType::kBf16, kExperts, kHidden, kIntermediate);
  return w;
}

Outputs run_layer(monomoe::Group& group, Inputs& in) {
  // 1. Which row goes where; one schedule serves forward and backward.
  std::vector<int32_t> tables(
      static_cast<size_t>(monomoe::schedule_words(group, kTokens, kExperts, kTopK)));
  monomoe::Schedule schedule;
  schedule.tables = contiguous(tables.data(), DType::kI32, static_cast<int64_t>(tables.size()));
  schedule.experts = kExperts;
  schedule.top_k = kTopK;
  schedule.tokens_per_rank = monomoe::split_tokens(kTokens, group.ranks());
  monomoe::schedule(group, contiguous(in.topk_ids.data(), DType::kI32, kTokens, kTopK), schedule);

  // 2. Forward: y, and what backward needs.
  Outputs out;
  out.y.resize(in.x.size());
  monomoe::ForwardArgs forward;
  forward.x = contiguous(in.x.data(), DType::kBf16, kTokens, kHidden);
  forward.topk_weights = contiguous(in.topk_weights.data(), DType::kF32, kTokens, kTopK);
  forward.weights = weight_tensors(in.gate, in.up, in.down);
  forward.schedule = schedule;
  forward.y = contiguous(out.y.data(), DType::kBf16, kTokens, kHidden);
  monomoe::Shape shape;
  shape.tokens = kTokens;
  shape.hidden = kHidden;
  shape.intermediate = kIntermediate;
  shape.experts = kExperts;
  shape.top_k = kTopK;
  shape.ranks = group.ranks();
  const int64_t saved_bytes{monomoe::saved_bytes(group, shape, forward.config)};
  struct alignas(16) Block {
    unsigned char bytes[16];
  };
  std::vector<Block> saved(static_cast<size_t>((saved_bytes + 15) / 16));
  forward.saved = contiguous(saved.data(), DType::kU8, saved_bytes);
  monomoe::forward(group, forward);

  // 3. Backward: all gradients.
  out.dx.resize(in.x.size());
  out.dtopk_weights.resize(in.topk_weights.size());
  out.dgate.resize(in.gate.size());
  out.dup.resize(in.up.size());
  out.ddown.resize(in.down.size());
  monomoe::BackwardArgs backward;
  backward.dy = contiguous(in.dy.data(), DType::kBf16, kTokens, kHidden);
  backward.x = forward.x;
  backward.topk_weights = forward.topk_weights;
  backward.weights = forward.weights;
  backward.schedule = schedule;
  backward.config = forward.config;
  backward.saved = forward.saved;
  backward.dx = contiguous(out.dx.data(), DType::kBf16, kTokens, kHidden);
  backward.dtopk_weights = contiguous(out.dtopk_weights.data(), DType::kF32, kTokens, kTopK);
  backward.grads = weight_tensors(out.dgate, out.dup, out.ddown);
  monomoe::backward(group, backward);
  return out;
}

int run() {
  Inputs in{make_inputs()};
  const std::shared_ptr<monomoe::Group> one{monomoe::Group::local()};
  const std::shared_ptr<monomoe::Group> several{monomoe::Group::local(kRanks)};
  const Outputs first{run_layer(*one, in)};
  const bool again{same_bits(run_layer(*one, in), first)};
  const bool ranks{same_bits(run_layer(*several, in), first)};
  std::printf("|y| = %.6f  |dx| = %.6f  |ddown| = %.6f\n", norm(first.y), norm(first.dx),
              norm(first.ddown));
  std::printf("second run: %s bits; %d ranks: %s bits\n", again ? "same" : "OTHER",
              static_cast<int>(kRanks), ranks ? "same" : "OTHER");
  return again && ranks && norm(first.y) > 0.0 ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
