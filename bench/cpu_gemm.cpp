// Speed of the CPU micro-kernel with packing, at the demo's shapes. One thread.
//
// Prints one JSON object a line: rows, cols, depth, GFLOP/s. Not a test: a machine may be slow.
#include <chrono>
#include <cstdio>
#include <random>

#include "arch/cpu/mma.h"

namespace {

using monomoe::Bf16;
using monomoe::cpu::multiply_add;
using monomoe::cpu::Operand;
using monomoe::cpu::Scratch;

struct Gemm {
  const char* name;
  int32_t rows, cols, depth;
  bool a_along_k, b_along_k;
};

double gflops(const Gemm& g) {
  std::mt19937 random{1};
  std::normal_distribution<float> normal;
  const auto operand = [&](int32_t n, bool along_k, std::vector<Bf16>* data) {
    data->resize(static_cast<size_t>(n) * static_cast<size_t>(g.depth));
    for (Bf16& v : *data) v = monomoe::to_bf16(normal(random));
    return Operand{data->data(), along_k ? g.depth : n, along_k};
  };
  std::vector<Bf16> a_data;
  std::vector<Bf16> b_data;
  const Operand a{operand(g.rows, g.a_along_k, &a_data)};
  const Operand b{operand(g.cols, g.b_along_k, &b_data)};
  Scratch scratch{monomoe::TileShape{}};
  using Clock = std::chrono::steady_clock;
  double best{0};
  for (int sample{0}; sample < 20; ++sample) {
    constexpr int kRuns{50};
    const auto begin = Clock::now();
    for (int i{0}; i < kRuns; ++i) {
      scratch.clear();
      multiply_add(scratch, a, g.rows, {{b, g.cols, 0}}, g.depth);
    }
    const std::chrono::duration<double> took{Clock::now() - begin};
    best = std::max(best, 2e-9 * g.rows * g.cols * g.depth * kRuns / took.count());
  }
  return best;
}

}  // namespace

int main() {
  const Gemm gemms[]{
      {"gate_up", 128, 128, 64, true, true},     {"down", 128, 64, 128, true, true},
      {"dgrad_down", 128, 128, 64, true, false}, {"dgrad_gate_up", 128, 64, 256, true, false},
      {"wgrad", 128, 64, 128, false, false},     {"large", 128, 128, 2048, true, true}};
  for (const Gemm& g : gemms) {
    std::printf(
        "{\"bench\": \"cpu_gemm\", \"gemm\": \"%s\", \"rows\": %d, \"cols\": %d, "
        "\"depth\": %d, \"gflops\": %.1f}\n",
        g.name, g.rows, g.cols, g.depth, gflops(g));
  }
}
