// Epilogues of forward: rounding, activation, stores from accumulator fragments.
//
// A thread of a warpgroup holds, for 64 rows x 128 columns, d[nb * 4 + h * 2 + c]: row
// warp * 16 + h * 8 + lane / 4, column nb * 8 + (lane % 4) * 2 + c. Stores of rows go through a
// warp's staging (16 rows x 64 columns, 16-byte chunks xor-swizzled), so that a row segment of 128
// bytes leaves in 16-byte stores of neighbouring lanes.
#pragma once

#include <cstdint>

#include "arch/cuda/combine.cuh"
#include "arch/cuda/ptx/barrier.cuh"
#include "arch/cuda/signal.cuh"
#include "arch/sm90/smem_plan.h"

namespace monomoe::sm90 {

using cuda::Context;
using cuda::pack_bf16;

/// sigmoid by two approximate instructions: within 2 ulp of fp32, far below the bf16 rounding.
__device__ __forceinline__ float fast_sigmoid(float v) {
  float e;
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(v * -1.4426950408889634F));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0F + e));
  return r;
}

/// task/activation.h's Clamp in one instruction a bound; NaN passes through.
struct FastClamp {
  float limit;

  __device__ __forceinline__ float gate(float g) const {
    float v;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(g), "f"(limit));
    return v;
  }
  __device__ __forceinline__ float up(float u) const {
    float v;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(u), "f"(-limit));
    return gate(v);
  }
};

/// A consumer thread's place. Made anew for every task from a thread number that the compiler can't
/// see through: else it keeps dozens of addresses alive across tasks, in local memory.
struct Consumer {
  int32_t group;   // 0 or 1
  int32_t thread;  // in the warpgroup
  int32_t warp;
  int32_t lane;
  uint32_t staging;  // shared address of the warp's staging

  __device__ __forceinline__ Consumer(const WorkerSmem& s, int32_t g) : group{g} {
    int32_t id;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(id));
    thread = id % kGroupThreads;
    warp = thread / 32;
    lane = thread % 32;
    staging = ptx::smem_address(s.staging[g * 4 + warp]);
  }

  __device__ void sync() const { ptx::named_sync(1 + group, kGroupThreads); }
};

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
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(v[nb * 2]), "r"(v[nb * 2 + 1]), "r"(v[nb * 2 + 2]), "r"(v[nb * 2 + 3])
                 : "memory");
  }
  __syncwarp();
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    const int32_t r{i * 4 + (c.lane >> 3)};
    const int32_t chunk{c.lane & 7};
    uint4 q;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w)
                 : "r"(c.staging + static_cast<uint32_t>(r * 128 + ((chunk ^ (r & 7)) << 4)))
                 : "memory");
    put(r, i, chunk, q);
  }
}

/// Where gate_up's results go; the routed and the shared expert differ only here.
struct GateUpOut {
  Bf16* act;      // first row of the tile
  uint4* preact;  // first vector of the tile's first 64 rows, or null
  int32_t inter;
};

template <class P>
__device__ inline GateUpOut gate_up_out(const Context<P>& x, const Work& w) {
  const cuda::Launch& l{x.launch};
  const auto& p{x.plan};
  GateUpOut o{};
  if (w.kind == static_cast<int32_t>(Kind::kGateUp)) {
    o.inter = p.dims.inter;
    o.act = l.region<Bf16>(Region::kActRing) + w.out_row * o.inter;
    if (!p.recomputed(w.task.row)) {
      o.preact = l.saved_region<uint4>(l.saved_layout.preact) +
                 preact_elements(int64_t{w.task.row} * p.tile.rows, o.inter) / 8;
    }
  } else {
    o.inter = p.dims.shared;
    o.act = l.region<Bf16>(Region::kSharedAct) + w.out_row * o.inter;
    if (p.knobs.save_shared) {
      o.preact = l.saved_region<uint4>(l.saved_layout.shared_preact) +
                 preact_elements(w.out_row, o.inter) / 8;
    }
  }
  return o;
}

/// gate, up -> bf16 -> kept in fragment order; a -> bf16 -> act rows. 64 rows of the tile.
template <class P>
__device__ __forceinline__ void gate_up_half(const Context<P>& x, const Consumer& c, const Work& w,
                                             const GateUpOut& o, const float (&d)[64],
                                             int32_t half) {
  const FastClamp clamp{x.launch.clamp.limit};
  uint32_t a[16];
  uint4 gate[4];
  uint4 up[4];
#pragma unroll
  for (int32_t i = 0; i < 16; ++i) {
    const uint32_t g{pack_bf16(d[2 * i], d[2 * i + 1])};
    const uint32_t u{pack_bf16(d[32 + 2 * i], d[32 + 2 * i + 1])};
    reinterpret_cast<uint32_t*>(gate)[i] = g;
    reinterpret_cast<uint32_t*>(up)[i] = u;
    const auto act = [&clamp](float gv, float uv) {
      const float gc{clamp.gate(gv)};
      return gc * fast_sigmoid(gc) * clamp.up(uv);
    };
    a[i] = pack_bf16(act(cuda::low_half(g), cuda::low_half(u)),
                     act(cuda::high_half(g), cuda::high_half(u)));
  }
  const int32_t n{w.task.col};
  if (o.preact != nullptr) {
    const int32_t blocks{ceil_div(o.inter, kPreactBlock)};
    uint4* const to{o.preact + (int64_t{half} * blocks + n) * 2 * 4 * kGroupThreads + c.thread};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      __stcs(to + i * kGroupThreads, gate[i]);
      __stcs(to + (4 + i) * kGroupThreads, up[i]);
    }
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

/// Row segments -> bf16 -> slots at the homes, or shared_out.
template <class P>
__device__ __forceinline__ void down_half(const Context<P>& x, const Consumer& c, const Work& w,
                                          const float (&d)[64], int32_t half) {
  const cuda::Launch& l{x.launch};
  const auto& p{x.plan};
  const int32_t h{p.dims.hidden};
  const int32_t row0{half * 64 + c.warp * 16};
  const bool routed{w.kind == static_cast<int32_t>(Kind::kDown) ||
                    w.kind == static_cast<int32_t>(Kind::kDgradGateUp)};
  Bf16* to[4];
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    const int32_t row{row0 + i * 4 + (c.lane >> 3)};
    to[i] = nullptr;
    if (row >= w.rows) continue;
    if (routed) {
      const RowSource src{p.tables.row_src[int64_t{w.task.row} * p.tile.rows + row]};
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

/// The last column tile of a row tile adds its rows to the arrival counters of their homes.
template <class P>
__device__ inline void push_arrivals(const Context<P>& x, const Consumer& c, const Work& w) {
  const auto& p{x.plan};
  const bool mine{c.thread < w.rows};
  RowSource src{-1, 0};
  if (mine) src = p.tables.row_src[int64_t{w.task.row} * p.tile.rows + c.thread];
  const int32_t block{src.slot / p.dims.top_k / p.tile.sum_tokens};
  const uint64_t key{(static_cast<uint64_t>(static_cast<uint32_t>(src.home)) << 32U) |
                     static_cast<uint32_t>(block)};
  const uint32_t same{__match_any_sync(cuda::kFullWarp, key)};
  if (mine && __ffs(static_cast<int>(same)) - 1 == c.lane) {
    cuda::add_release(x, {Counter::kArrival, src.home, block}, __popc(same));
  }
}

/// Raises the task's counters once all stores of the warpgroup are done. Async-proxy readers (TMA)
/// of these stores exist for activations and gradients, hence the fence in every thread.
/// `push`: sends a row tile off, once this was its last column tile.
template <class P, class Push>
__device__ inline void finish(const Context<P>& x, const Consumer& c, const Work& w, int32_t* last,
                              const Push& push) {
  ptx::fence_proxy_async();
  c.sync();
  const int32_t target{completion_target(x.plan, w.task.kind)};
  if (c.thread == 0) {
    for_each_signal(x.plan, w.task, [&](const CounterRef& r, int32_t step) {
      if (target == 0) {
        cuda::add_release(x, r, step);
      } else {
        *last = ptx::fetch_add_acq_rel_gpu(x.word(r), step) + step == target ? 1 : 0;
      }
    });
  }
  if (target == 0) return;
  c.sync();
  if (*last != 0) push();
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
