// Epilogues of the rows' gradients, and of gate_up computed again.
//
// Pre-activations lie in fragment order (task/gate_up.h): the thread that needs a value is the one
// that stored it, in forward or in the recomputation, 16 bytes each. The loader brings them to two
// stages behind the products: loads of its own would wait for thousands of cycles.
#pragma once

#include <cstdint>

#include "arch/sm90/epilogue.cuh"

namespace monomoe::sm90 {

/// gate_up computed again: gate, up -> bf16, kept. 64 rows of the tile.
template <class P>
__device__ __forceinline__ void recompute_half(const Work& w, uint4* preact, int32_t inter,
                                               const float (&d)[64], int32_t half) {
  uint4* const to{preact + preact_block(half, ceil_div(inter, kPreactBlock), w.task.col)};
#pragma unroll
  for (int32_t i = 0; i < 2 * kPreactVectors; ++i) {
    const float* v{d + 8 * i};
    to[i * kGroupThreads] = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]),
                                       pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
  }
}

/// Where the results of dgrad_down go; the routed and the shared expert differ only here.
struct DgradOut {
  Bf16* grad;  // [rows, 2, inter], first row of the tile
  Bf16* act;   // [rows, inter]
  int32_t inter;
};

template <class P>
__device__ inline DgradOut dgrad_out(const Context<P>& x, const Work& w) {
  const cuda::Launch& l{x.launch};
  const bool routed{w.task.kind == Kind::kDgradDown};
  const int32_t inter{routed ? x.plan.dims.inter : x.plan.dims.shared};
  return {l.region<Bf16>(routed ? Region::kGradRing : Region::kSharedGrad) + w.out_row * 2 * inter,
          l.region<Bf16>(routed ? Region::kActRing : Region::kSharedAct) + w.out_row * inter,
          inter};
}

/// The weight of a row: the router's, sigma, or 1.
template <class P>
__device__ __forceinline__ float row_weight(const Context<P>& x, const Work& w, int32_t row) {
  const cuda::Launch& l{x.launch};
  if (row >= w.rows) return 0.0F;
  const int64_t at{w.out_row + row};
  if (w.task.kind == Kind::kDgradDown) return __ldcg(l.region<float>(Region::kWeightRing) + at);
  if (!x.plan.dims.score) return 1.0F;
  return sigma_of(x, at);
}

/// Where the partial router gradients of a row lie: one a column tile.
template <class P>
__device__ __forceinline__ float* partials_of(const Context<P>& x, const Work& w, int32_t row) {
  const bool routed{!detail::is_shared(w.task.kind)};
  const int64_t tiles{routed ? x.plan.inter_tiles() : x.plan.shared_inter_tiles()};
  return x.launch.template region<float>(routed ? Region::kPartials : Region::kSharedPartials) +
         (w.out_row + row) * tiles;
}

/// What one value of dA' becomes (task/activation.h, with approximate sigmoid).
struct DgradValue {
  float act;  // not rounded
  float dgate, dup;
};
__device__ __forceinline__ DgradValue dgrad_value(const FastClamp& clamp, float gate, float up,
                                                  float scaled) {
  const float g{clamp.gate(gate)};
  const float u{clamp.up(up)};
  const float s{fast_sigmoid(g)};
  const float silu{g * s};
  const float slope{s * (1.0F + g * (1.0F - s))};
  return {silu * u, gate > clamp.limit ? 0.0F : scaled * (u * slope),
          fabsf(up) > clamp.limit ? 0.0F : scaled * silu};
}

/// As store_rows of epilogue.cuh, of a warp's 16 rows x 16 columns: columns 16 * `part` of the 32
/// at `place` 0 or 1 of the staging.
__device__ __forceinline__ void stage_16(const Consumer& c, int32_t place, int32_t part,
                                         const uint32_t (&v)[4]) {
  const int32_t r{c.lane & 15};
  const int32_t chunk{2 * part + (c.lane >> 4)};
  const uint32_t at{c.staging +
                    static_cast<uint32_t>(place * 1024 + r * 64 + ((chunk ^ ((r >> 1) & 3)) << 4))};
  ptx::store_matrices(at, v[0], v[1], v[2], v[3]);
}

/// Staged rows -> to + row * ld, in 16 bytes a lane; rows from `rows` on are zero.
struct StagedRows {
  int32_t row0, rows, padded;
  int32_t col, cols;  // of the 32 columns

  __device__ __forceinline__ void store(const Consumer& c, int32_t part, Bf16* to,
                                        int32_t ld) const {
    // Addresses are made anew each time: kept, they would push sums out of registers.
    int32_t lane{c.lane};
    asm volatile("" : "+r"(lane));
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t r{i * 8 + (lane >> 2)};
      const int32_t chunk{lane & 3};
      uint4 q{
          ptx::load_shared_16(c.staging + static_cast<uint32_t>(part * 1024 + r * 64 +
                                                                ((chunk ^ ((r >> 1) & 3)) << 4)))};
      const int32_t row{row0 + r};
      if (row >= padded || col + chunk * 8 >= cols) continue;
      if (row >= rows) q = make_uint4(0, 0, 0, 0);
      ptx::store_16(to + int64_t{row} * ld + col + chunk * 8, q);
    }
  }
};

/// Pre-activations of a thread's 8 value pairs: 16 rows x 32 columns of its warp.
struct Preact32 {
  uint4 gate[2], up[2];

  /// `at`: shared address.
  __device__ __forceinline__ explicit Preact32(uint32_t at)
      : gate{ptx::load_shared_16(at), ptx::load_shared_16(at + kVector)},
        up{ptx::load_shared_16(at + kPreactVectors * kVector),
           ptx::load_shared_16(at + (kPreactVectors + 1) * kVector)} {}

  static constexpr uint32_t kVector{kGroupThreads * 16};

  __device__ __forceinline__ uint32_t word(const uint4 (&v)[2], int32_t i) const {
    const uint4& q{v[i / 4]};
    return i % 4 == 0 ? q.x : i % 4 == 1 ? q.y : i % 4 == 2 ? q.z : q.w;
  }
};

template <int32_t kFirst>
__device__ __forceinline__ void copy_sums(const float (&d)[64], float (&to)[16]) {
#pragma unroll
  for (int32_t i = 0; i < 16; ++i) to[i] = d[kFirst + i];
}
/// Sums [16 * sixteen, + 16): registers can't be counted through.
__device__ __forceinline__ void pick_sums(const float (&d)[64], int32_t sixteen, float (&to)[16]) {
  switch (sixteen) {
    case 0:
      return copy_sums<0>(d, to);
    case 1:
      return copy_sums<16>(d, to);
    case 2:
      return copy_sums<32>(d, to);
    default:
      return copy_sums<48>(d, to);
  }
}

/// dA' -> dgate, dup, w * a and the partial router gradients, with the pre-activations that the
/// loader brought to a stage. 64 rows of the tile, 32 columns at a time: what 64 columns need does
/// not fit into registers beside the sums. One piece of code for all: unrolled it was 112 KiB, and
/// most of its time went into fetching instructions (docs/notes).
template <class P>
__device__ __forceinline__ void dgrad_down_half(const Context<P>& x, const Consumer& c,
                                                const Work& w, const DgradOut& o,
                                                const float (&d)[64], int32_t half,
                                                const uint8_t* preact) {
  const FastClamp clamp{x.launch.clamp.limit};
  const int32_t blocks{ceil_div(o.inter, kPreactBlock)};
  const int32_t own_row{half * 64 + c.warp * 16 + c.lane / 4};
  const float weight[2]{row_weight(x, w, own_row), row_weight(x, w, own_row + 8)};
  float partial[2]{};
  const uint32_t own_preact{ptx::smem_address(preact) + static_cast<uint32_t>(c.thread * 16)};
  MONOMOE_ROLLED
  for (int32_t part{0}; part < 4; ++part) {
    if (w.task.col * 2 + part / 2 >= blocks) break;
    float sums[16];
    pick_sums(d, part, sums);
    const int32_t vectors{part / 2 * 2 * kPreactVectors + part % 2 * 2};
    const Preact32 in{own_preact + static_cast<uint32_t>(vectors) * Preact32::kVector};
    uint32_t act[2][4];
    __syncwarp();
#pragma unroll
    for (int32_t j = 0; j < 2; ++j) {
      uint32_t gate[4];
      uint32_t up[4];
#pragma unroll
      for (int32_t k = 0; k < 4; ++k) {
        const int32_t i{j * 4 + k};
        const uint32_t g{in.word(in.gate, i)};
        const uint32_t u{in.word(in.up, i)};
        const float wt{weight[i % 2]};
        const float da0{sums[2 * i]};
        const float da1{sums[2 * i + 1]};
        const DgradValue v0{dgrad_value(clamp, cuda::low_half(g), cuda::low_half(u), wt * da0)};
        const DgradValue v1{dgrad_value(clamp, cuda::high_half(g), cuda::high_half(u), wt * da1)};
        const uint32_t a{pack_bf16(v0.act, v1.act)};
        partial[i % 2] = fmaf(da0, cuda::low_half(a), partial[i % 2]);
        partial[i % 2] = fmaf(da1, cuda::high_half(a), partial[i % 2]);
        gate[k] = pack_bf16(v0.dgate, v1.dgate);
        up[k] = pack_bf16(v0.dup, v1.dup);
        act[j][k] = pack_bf16(wt * cuda::low_half(a), wt * cuda::high_half(a));
      }
      stage_16(c, 0, j, gate);
      stage_16(c, 1, j, up);
    }
    const StagedRows rows{half * 64 + c.warp * 16, w.rows, w.padded, w.task.col * 128 + part * 32,
                          o.inter};
    __syncwarp();
    rows.store(c, 0, o.grad, 2 * o.inter);
    rows.store(c, 1, o.grad + o.inter, 2 * o.inter);
    __syncwarp();
    stage_16(c, 0, 0, act[0]);
    stage_16(c, 0, 1, act[1]);
    __syncwarp();
    rows.store(c, 0, o.act, o.inter);
  }
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    float sum{partial[h]};
    sum += __shfl_xor_sync(cuda::kFullWarp, sum, 1);
    sum += __shfl_xor_sync(cuda::kFullWarp, sum, 2);
    const int32_t row{own_row + h * 8};
    if (c.lane % 4 == 0 && row < w.rows) partials_of(x, w, row)[w.task.col] = sum;
  }
}

/// The router gradient of a row: its partials, column tiles ascending.
__device__ inline float sum_partials(const float* partials, int32_t tiles) {
  float sum{0.0F};
#pragma unroll 8
  for (int32_t n{0}; n < tiles; ++n) sum += __ldcg(partials + n);
  return sum;
}

}  // namespace monomoe::sm90
