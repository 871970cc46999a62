// Cases of shared/field-cases.md that need tensors of several gigabytes, checked where they go
// wrong: in the offsets. Addresses are computed, nothing is read. (F15 and F32 were also run as
// they stand, by hand: docs/field_cases.md.)
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "arch/cpu/load.h"
#include "plan/policy.h"
#include "runtime/operands.h"
#include "runtime/planner.h"
#include "task/gate_up.h"

namespace monomoe::testing {
namespace {

constexpr int64_t kInt32{int64_t{1} << 31};

/// A tensor at an address that nobody looks at.
Tensor fake(DType dtype, std::vector<int64_t> shape, uintptr_t address) {
  Tensor t;
  t.data = reinterpret_cast<void*>(address);  // NOLINT: never read
  t.dtype = dtype;
  t.ndim = static_cast<int32_t>(shape.size());
  int64_t step{1};
  for (size_t d{shape.size()}; d-- > 0; step *= shape[d]) {
    t.shape[d] = shape[d];
    t.stride[d] = step;
  }
  return t;
}

uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

/// Plan and operands of a call of one rank with those sizes, on a table of its own.
struct Call1 {
  TableHeader header{};
  Call call;
  RankPlan rank;
  cpu::RankLaunch launch;

  Call1(int64_t tokens, int64_t hidden, int64_t inter, int64_t experts, int64_t top_k,
        const Config& config) {
    call.backward = true;
    call.x = fake(DType::kBf16, {tokens, hidden}, uintptr_t{1} << 40U);
    call.dy = fake(DType::kBf16, {tokens, hidden}, uintptr_t{2} << 40U);
    call.y = fake(DType::kBf16, {tokens, hidden}, uintptr_t{3} << 40U);
    call.saved = fake(DType::kU8, {0}, uintptr_t{4} << 40U);
    call.weights.gate = fake(DType::kBf16, {experts, inter, hidden}, uintptr_t{5} << 40U);
    call.weights.up = fake(DType::kBf16, {experts, inter, hidden}, uintptr_t{6} << 40U);
    call.weights.down = fake(DType::kBf16, {experts, hidden, inter}, uintptr_t{7} << 40U);
    call.grads.gate = fake(DType::kF32, {experts, inter, hidden}, uintptr_t{8} << 40U);
    call.grads.up = fake(DType::kF32, {experts, inter, hidden}, uintptr_t{9} << 40U);
    call.grads.down = fake(DType::kF32, {experts, hidden, inter}, uintptr_t{10} << 40U);
    call.config = config;
    Plan& p{rank.plan};
    p.dims = {};
    p.dims.tokens = static_cast<int32_t>(tokens);
    p.dims.hidden = static_cast<int32_t>(hidden);
    p.dims.inter = static_cast<int32_t>(inter);
    p.dims.experts = static_cast<int32_t>(experts);
    p.dims.top_k = static_cast<int32_t>(top_k);
    p.backward = true;
    p.knobs = choose_knobs(config, PlanTraits{}, p.tile, p.dims, tokens, true);
    p.tables.header = &header;
    header.num_tiles = static_cast<int32_t>(tokens * top_k / p.tile.rows);
    header.max_num_tiles = header.num_tiles + 1;
    rank.saved = saved_layout(p.dims, p.tile, p.knobs);
    rank.facts = {.dims = p.dims,
                  .tile = p.tile,
                  .ring_tiles = p.knobs.ring_tiles,
                  .tile_capacity = row_capacity(p.dims, p.tile, tokens) / p.tile.rows,
                  .backward = true};
    launch.plan = p;
    static_cast<Operands&>(launch) = bind_operands(call, rank);
    launch.layout = workspace_layout(rank.facts);
    launch.local = reinterpret_cast<std::byte*>(uintptr_t{11} << 40U);  // NOLINT: never read
  }
};

// T * K rows of H = 7168: row 299,593 begins beyond element 2^31.
constexpr int64_t kT15{37'500}, kH15{7168}, kK15{8};

TEST(FieldCases, F15_RowOffsetsBeyond32Bits) {
  Config config;
  config.save = Save::kAll;
  config.ring_rows = 299'700;
  Call1 c{kT15, kH15, 64, 8, kK15, config};
  const Layout& l{c.launch.layout};
  EXPECT_EQ(l[Region::kSlots].bytes, kT15 * kK15 * kH15 * 2);
  EXPECT_GT(l[Region::kSlots].bytes, 2 * kInt32);
  const int64_t ring{int64_t{c.rank.plan.knobs.ring_tiles} * 128};
  ASSERT_GT(ring * kH15, kInt32);
  EXPECT_EQ(l[Region::kXRing].bytes, ring * kH15 * 2);
  for (int32_t i{1}; i < kNumRegions; ++i) {
    if (i == kNumHeapRegions) continue;
    EXPECT_GE(l.at[i].offset, l.at[i - 1].offset + l.at[i - 1].bytes) << i;
  }
  EXPECT_GE(l.local_bytes, l.at[kNumRegions - 1].offset + l.at[kNumRegions - 1].bytes);

  // Row tiles on both sides of the border, and the last: x in the ring, dy, saved x, the tensors.
  for (const int64_t tile :
       {int64_t{0}, kInt32 / kH15 / 128, kInt32 / kH15 / 128 + 1, ring / 128 - 1}) {
    const auto n = static_cast<int32_t>(tile);
    const int64_t row{tile * 128};
    EXPECT_EQ(address(cpu::dy_rows(c.launch, n).data),
              address(c.launch.local) +
                  static_cast<uintptr_t>(l[Region::kDyRing].offset + row * kH15 * 2));
    ASSERT_TRUE(c.launch.plan.x_in_saved(n));
    EXPECT_EQ(
        address(cpu::x_rows(c.launch, n).data),
        (uintptr_t{4} << 40U) + static_cast<uintptr_t>(c.rank.saved.x.offset + row * kH15 * 2));
  }
  EXPECT_EQ(address(c.launch.x.at(kT15 - 1)), (uintptr_t{1} << 40U) + (kT15 - 1) * kH15 * 2);
}

TEST(FieldCases, F15_SavedPreactivationsBeyond32Bits) {
  constexpr int32_t kInter{4096};
  for (const int64_t row : {kInt32 / (2 * kInter) - 1, kInt32 / (2 * kInter), int64_t{299'999}}) {
    for (const int32_t col : {0, 63, 64, kInter - 1}) {
      const int64_t block{(row / 64 * (kInter / 64) + col / 64) * 2};
      const int64_t at{preact_index(row, col, 0, kInter)};
      EXPECT_EQ(at / 4096, block);
      EXPECT_EQ(preact_index(row, col, 1, kInter), at + 4096);
    }
  }
  EXPECT_GT(preact_index(299'999, kInter - 1, 1, kInter), kInt32);
  EXPECT_EQ(preact_elements(300'000, kInter), 300'032LL * kInter * 2);
}

TEST(FieldCases, F32_ExpertOffsetsBeyond32Bits) {
  constexpr int64_t kE{264}, kI{1024}, kH{4096};
  Call1 c{4, kH, kI, kE, 8, {}};
  ASSERT_GT(kE * 2 * kI * kH, kInt32);  // gate and up as one tensor
  const Operands& o{c.launch};
  for (const int64_t e : {int64_t{0}, int64_t{255}, int64_t{256}, kE - 1}) {
    const auto bytes = static_cast<uintptr_t>(e * kI * kH * 2);
    EXPECT_EQ(address(o.weights.gate.of(e).data), (uintptr_t{5} << 40U) + bytes);
    EXPECT_EQ(address(o.weights.up.of(e).at(kI - 1)),
              (uintptr_t{6} << 40U) + bytes + (kI - 1) * kH * 2);
    EXPECT_EQ(address(o.weights.down.of(e).data), (uintptr_t{7} << 40U) + bytes);
    EXPECT_EQ(e * o.grads.gate.matrix, e * kI * kH);
    EXPECT_EQ(e * o.grads.down.matrix, e * kI * kH);
  }
  // The same experts at another rank begin there.
  c.rank.plan.dims.ranks = 2;
  c.rank.plan.dims.rank = 1;
  const Operands second{bind_operands(c.call, c.rank)};
  EXPECT_EQ(address(second.weights.gate.data), (uintptr_t{5} << 40U) + kE / 2 * kI * kH * 2);
  EXPECT_EQ(address(second.grads.gate.data), (uintptr_t{8} << 40U) + kE / 2 * kI * kH * 4);
}

}  // namespace
}  // namespace monomoe::testing
