// Epilogues of forward: rounding, activation, stores from accumulator fragments.
//
// A thread of a warpgroup holds, for 64 rows x 128 columns, d[nb * 4 + h * 2 + c]: row
// warp * 16 + h * 8 + lane / 4, column nb * 8 + (lane % 4) * 2 + c. Stores of rows go through a
// warp's staging (16 rows x 64 columns, 16-byte chunks xor-swizzled), so that a row segment of 128
// bytes leaves in 16-byte stores of neighbouring lanes.
#pragma once

#include <cstdint>

#include "arch/cuda/bf16.cuh"
#include "arch/cuda/ptx/barrier.cuh"
#include "arch/cuda/ptx/math.cuh"
#include "arch/cuda/ptx/shared.cuh"
#include "arch/cuda/signal.cuh"
#include "arch/sm90/preact.cuh"

namespace monomoe::sm90 {

using cuda::Context;
using ptx::pack_bf16;

/// sigmoid by two approximate instructions: within 2 ulp of fp32, far below the bf16 rounding.
__device__ __forceinline__ float fast_sigmoid(float v) {
  return ptx::rcp_approx(1.0F + ptx::exp2_approx(v * -1.4426950408889634F));
}

/// task/activation.h's Clamp in one instruction a bound; NaN passes through.
struct FastClamp {
  float limit;

  __device__ __forceinline__ float gate(float g) const { return ptx::min_nan(g, limit); }
  __device__ __forceinline__ float up(float u) const { return gate(ptx::max_nan(u, -limit)); }
};

/// A consumer thread's place. Made anew for every task from a thread number that the compiler can't
/// see through: else it keeps dozens of addresses alive across tasks, in local memory.
struct Consumer {
  int32_t group;   // 0 or 1
  int32_t thread;  // in the warpgroup
  int32_t warp;
  int32_t lane;
  uint32_t staging;  // shared address of the warp's staging

  __device__ __forceinline__ explicit Consumer(const WorkerSmem& s) {
    const int32_t id{ptx::opaque_thread()};
    group = id / kGroupThreads - 1;
    thread = id % kGroupThreads;
    warp = thread / 32;
    lane = thread % 32;
    staging = ptx::smem_address(s.staging[group * 4 + warp]);
  }

  __device__ void sync() const { ptx::named_sync(1 + group, kGroupThreads); }
};

/// One thread of a warpgroup: its reads of a stage are done. Loaders of both blocks wait for it,
/// since each writes to both.
struct Releases {
  uint64_t* own;
  uint32_t other;  // in the other block

  __device__ __forceinline__ explicit Releases(WorkerSmem& s)
      : own{s.empty}, other{ptx::cluster_address(s.empty, ptx::cluster_rank() ^ 1U)} {}
  __device__ __forceinline__ void release(int32_t stage) const {
    ptx::barrier_arrive(own + stage);
    ptx::barrier_arrive_remote(other + static_cast<uint32_t>(stage) * sizeof(*own));
  }
};
__device__ __forceinline__ void release_stage(WorkerSmem& s, int32_t stage) {
  Releases{s}.release(stage);
}

/// v[nb * 2 + h]: packed pairs of a warp's 16 rows x 64 columns -> put(row in 16, chunk, 16 bytes).
template <class Put>
__device__ __forceinline__ void store_rows(const Consumer& c, const uint32_t (&v)[16],
                                           const Put& put) {
  __syncwarp();
#pragma unroll
  for (int32_t nb = 0; nb < 8; nb += 2) {
    const int32_t r{(c.lane & 7) + ((c.lane >> 3) & 1) * 8};
    const int32_t chunk{nb + (c.lane >> 4)};
    const uint32_t at{c.staging + static_cast<uint32_t>(r * 128 + ((chunk ^ (r & 7)) << 4))};
    ptx::store_matrices(at, v[nb * 2], v[nb * 2 + 1], v[nb * 2 + 2], v[nb * 2 + 3]);
  }
  __syncwarp();
  constexpr int32_t kTimes{4};
  const int32_t chunk{c.lane & 7};
  uint4 q[kTimes];
#pragma unroll
  for (int32_t i = 0; i < kTimes; ++i) {
    const int32_t r{i * 4 + (c.lane >> 3)};
    q[i] =
        ptx::load_shared_16(c.staging + static_cast<uint32_t>(r * 128 + ((chunk ^ (r & 7)) << 4)));
  }
#pragma unroll
  for (int32_t i = 0; i < kTimes; ++i) put(i * 4 + (c.lane >> 3), i, chunk, q[i]);
}

/// The gate of the shared expert's output of a token.
template <class P>
__device__ inline float sigma_of(const Context<P>& x, int64_t token) {
  return cuda::sigmoid(x.launch.template saved_region<float>(x.launch.saved_layout.score)[token]);
}

/// Where gate_up's results go; the routed and the shared expert differ only here.
struct GateUpOut {
  Bf16* act;      // first row of the tile
  uint4* preact;  // first vector of the tile's first 64 rows, or null
  int32_t inter;
};

template <class P>
__device__ inline GateUpOut gate_up_out(const Context<P>& x, const Work& w) {
  const auto& p{x.plan};
  const bool routed{w.kind == static_cast<int32_t>(Kind::kGateUp)};
  const bool kept{routed ? !p.recomputed(w.task.row) : p.knobs.save_shared};
  const int32_t inter{routed ? p.dims.inter : p.dims.shared};
  const Region act{routed ? Region::kActRing : Region::kSharedAct};
  return {x.launch.template region<Bf16>(act) + w.out_row * inter,
          kept ? preact_rows(x, w) : nullptr, inter};
}

/// gate, up -> bf16 -> kept in fragment order; a -> bf16 -> act rows. 64 rows of the tile.
template <class P>
__device__ __forceinline__ void gate_up_half(const Context<P>& x, const Consumer& c, const Work& w,
                                             const GateUpOut& o, const float (&d)[64],
                                             int32_t half) {
  const FastClamp clamp{x.launch.clamp.limit};
  const auto act = [&clamp](float gv, float uv) {
    const float gc{clamp.gate(gv)};
    return gc * fast_sigmoid(gc) * clamp.up(uv);
  };
  const int32_t n{w.task.col};
  const int32_t blocks{ceil_div(o.inter, kPreactBlock)};
  uint4* const kept{o.preact + preact_block(half, blocks, n) + c.thread};
  uint32_t a[16];
#pragma unroll
  for (int32_t q = 0; q < kPreactVectors; ++q) {
    uint32_t gate[4];
    uint32_t up[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t at{2 * (q * 4 + i)};
      gate[i] = pack_bf16(d[at], d[at + 1]);
      up[i] = pack_bf16(d[32 + at], d[32 + at + 1]);
      a[q * 4 + i] = pack_bf16(act(cuda::low_half(gate[i]), cuda::low_half(up[i])),
                               act(cuda::high_half(gate[i]), cuda::high_half(up[i])));
    }
    if (o.preact == nullptr) continue;
    __stcs(kept + q * kGroupThreads, make_uint4(gate[0], gate[1], gate[2], gate[3]));
    __stcs(kept + (kPreactVectors + q) * kGroupThreads, make_uint4(up[0], up[1], up[2], up[3]));
  }
  const int32_t row0{half * 64 + c.warp * 16};
  const int32_t col0{n * 64};
  store_rows(c, a, [&](int32_t r, int32_t, int32_t chunk, uint4 q) {
    const int32_t row{row0 + r};
    const int32_t col{col0 + chunk * 8};
    if (row >= w.padded || col >= o.inter) return;
    if (row >= w.rows) q = make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(o.act + int64_t{row} * o.inter + col) = q;
  });
}

/// Does a task push its rows to slots at their homes?
__device__ __forceinline__ bool pushes(const Work& w) {
  return w.kind == static_cast<int32_t>(Kind::kDown) ||
         w.kind == static_cast<int32_t>(Kind::kDgradGateUp);
}

/// Where a warp's 32 rows of a tile go: before the main loop, since the table is far away.
template <class P>
__device__ inline void find_targets(const Context<P>& x, WorkerSmem& s, const Consumer& c,
                                    const Work& w) {
  const int32_t row{c.lane / 16 * 64 + c.warp * 16 + c.lane % 16};
  RowSource src{RowSource::kGap, 0};
  if (row < w.rows) src = x.plan.tables.row_src[int64_t{w.task.row} * x.plan.tile.rows + row];
  s.targets[c.group * 4 + c.warp][c.lane] = src;
  __syncwarp();
}

/// Row segments -> bf16 -> slots at the homes, or shared_out.
template <class P>
__device__ __forceinline__ void down_half(const Context<P>& x, const WorkerSmem& s,
                                          const Consumer& c, const Work& w, const float (&d)[64],
                                          int32_t half) {
  const cuda::Launch& l{x.launch};
  const auto& p{x.plan};
  const int32_t h{p.dims.hidden};
  const int32_t row0{half * 64 + c.warp * 16};
  const bool routed{pushes(w)};
  Bf16* to[4];
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    const int32_t row{row0 + i * 4 + (c.lane >> 3)};
    to[i] = nullptr;
    if (row >= w.rows) continue;
    if (routed) {
      const RowSource src{s.targets[c.group * 4 + c.warp][half * 16 + i * 4 + (c.lane >> 3)]};
      to[i] = l.heaps[src.home].slots + int64_t{src.slot} * h;
    } else {
      to[i] = l.region<Bf16>(Region::kSharedOut) + (w.out_row + row) * h;
    }
  }
#pragma unroll
  for (int32_t block = 0; block < 2; ++block) {
    uint32_t v[16];
#pragma unroll
    for (int32_t i = 0; i < 16; ++i) {
      v[i] = pack_bf16(d[block * 32 + 2 * i], d[block * 32 + 2 * i + 1]);
    }
    const int32_t col0{w.task.col * 128 + block * 64};
    store_rows(c, v, [&](int32_t, int32_t i, int32_t chunk, const uint4& q) {
      const int32_t col{col0 + chunk * 8};
      if (to[i] == nullptr || col >= h) return;
      *reinterpret_cast<uint4*>(to[i] + col) = q;
    });
  }
}

/// score[t] = x[t] . w_score: a warp a token, lanes stride over H, sums added in a fixed tree.
template <class P>
__device__ inline void shared_score(const Context<P>& x, const Consumer& c, const Work& w) {
  const cuda::Launch& l{x.launch};
  const int32_t h{x.plan.dims.hidden};
  float* const out{l.saved_region<float>(l.saved_layout.score)};
  for (int32_t row{c.warp}; row < w.rows; row += 4) {
    const Bf16* const from{l.x.at(w.out_row + row)};
    float sum{0.0F};
    for (int32_t i{c.lane}; i < h / 8; i += 32) {
      const uint4 a{*reinterpret_cast<const uint4*>(from + i * 8)};
      const uint4 b{*reinterpret_cast<const uint4*>(l.weights.shared_score + i * 8)};
      const uint32_t av[4]{a.x, a.y, a.z, a.w};
      const uint32_t bv[4]{b.x, b.y, b.z, b.w};
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        sum = fmaf(cuda::low_half(av[j]), cuda::low_half(bv[j]), sum);
        sum = fmaf(cuda::high_half(av[j]), cuda::high_half(bv[j]), sum);
      }
    }
#pragma unroll
    for (int32_t step = 16; step > 0; step /= 2) {
      sum += __shfl_xor_sync(cuda::kFullWarp, sum, step);
    }
    if (c.lane == 0) out[w.out_row + row] = sum;
  }
}

}  // namespace monomoe::sm90
