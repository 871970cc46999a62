// mbarrier and named barriers in shared memory. PTX ISA 9.7.13.15 (mbarrier), 9.7.13.1 (bar).
#pragma once

#include <cstdint>

namespace monomoe::ptx {

__device__ __forceinline__ uint32_t smem_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(uint64_t* b, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_address(b)), "r"(arrivals));
}

/// Makes initialised barriers visible to the async proxy; before the block's first __syncthreads.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(smem_address(b)) : "memory");
}

/// Arrives and announces `bytes` that bulk copies will bring.
__device__ __forceinline__ void barrier_expect(uint64_t* b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(smem_address(b)),
               "r"(bytes)
               : "memory");
}

/// Waits for the phase of parity `parity` to end. Only ever waits for roles of the same block,
/// which all end, so it needs no budget.
__device__ __forceinline__ void barrier_wait(uint64_t* b, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again_%=;\n"
      "}\n" ::"r"(smem_address(b)),
      "r"(parity)
      : "memory");
}

/// The same for what another block of the cluster handed on: acquires at cluster scope.
__device__ __forceinline__ void barrier_wait_cluster(uint64_t* b, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again_%=;\n"
      "}\n" ::"r"(smem_address(b)),
      "r"(parity)
      : "memory");
}

/// Has the phase of parity `parity` ended? If it has, that counts as barrier_wait.
__device__ __forceinline__ bool barrier_test(uint64_t* b, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(done)
      : "r"(smem_address(b)), "r"(parity)
      : "memory");
  return done != 0;
}

/// Shared address, in the window of the cluster, of `p` in block `rank` of the cluster.
__device__ __forceinline__ uint32_t cluster_address(const void* p, uint32_t rank) {
  uint32_t at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(smem_address(p)), "r"(rank));
  return at;
}
/// Arrives at a barrier of any block of the cluster: this thread's reads of shared memory are done.
/// Relaxed: a release would wait for all its stores, also to global memory, 1,000 cycles.
__device__ __forceinline__ void barrier_arrive_remote(uint32_t at) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory");
}
/// The same, and releases at cluster scope what it wrote.
__device__ __forceinline__ void barrier_arrive_cluster(uint32_t at) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void store_cluster(uint32_t at, uint32_t v) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
__device__ __forceinline__ void store_cluster_16(uint32_t at, const uint4& v) {
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

/// Arrives at a barrier of any block of the cluster and announces `bytes` that store_async_16 will
/// bring. Relaxed.
__device__ __forceinline__ void barrier_expect_remote(uint32_t at, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(at),
      "r"(bytes)
      : "memory");
}
/// st.async: into the block of the barrier `b` (both addresses in the window of the cluster);
/// completes on it, which releases the 16 bytes at cluster scope, and nothing else.
__device__ __forceinline__ void store_async_16(uint32_t at, const uint4& v, uint32_t b) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
      "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(at),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(b)
      : "memory");
}

__device__ __forceinline__ uint32_t load_cluster(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}

/// Of this block in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
/// All threads of the cluster's blocks meet; what each wrote to shared memory is visible then.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

/// bar.sync among the `threads` threads of a role.
__device__ __forceinline__ void named_sync(int32_t id, int32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// elect.sync: true for one lane of a converged warp. Section 9.7.13.14. The compiler knows that it
/// is one: bulk tensor copies behind `lane == 0` get a loop over lanes each, behind this they
/// don't.
__device__ __forceinline__ bool elect_one() {
  uint32_t chosen{0};
  asm volatile(
      "{\n"
      ".reg .pred is_chosen;\n"
      "elect.sync _|is_chosen, 0xFFFFFFFF;\n"
      "@is_chosen mov.u32 %0, 1;\n"
      "}\n"
      : "+r"(chosen));
  return chosen != 0;
}

/// setmaxnreg: registers a thread of this warpgroup. Section 9.7.19.5.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace monomoe::ptx
