// The product's kernels, compiled for the emulated machine, and what launches them.
#include "emulator/kernels.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <stdexcept>

#include "arch/sm90/kernel.cu"
#include "emulator/machine.h"
#include "emulator/tensor_map.h"

namespace emulator {
namespace {

struct Queued {
  Launch launch;
  cudaStream_t stream;
};
std::vector<Queued> queue;
uint64_t seed{1};

/// Launches in their order; as many as follow each other on different streams run side by side.
void run_all() {
  std::vector<Queued> now;
  now.swap(queue);
  for (size_t i{0}; i < now.size();) {
    std::set<cudaStream_t> streams;
    std::vector<Launch> together;
    for (; i < now.size() && streams.insert(now[i].stream).second; ++i) {
      together.push_back(now[i].launch);
    }
    run(together, seed++);
  }
}

}  // namespace

void set_seed(uint64_t s) { seed = s; }

}  // namespace emulator

namespace {

CUresult encode(CUtensorMap* out, CUtensorMapDataType, cuuint32_t, void* data,
                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const emulator::TensorMap m{static_cast<const uint8_t*>(data), static_cast<int64_t>(dims[0]),
                              static_cast<int64_t>(dims[1]),     static_cast<int64_t>(dims[2]),
                              static_cast<int64_t>(strides[0]),  static_cast<int64_t>(strides[1]),
                              static_cast<int32_t>(box[1])};
  static_assert(sizeof(m) <= sizeof(CUtensorMap));
  std::memcpy(out, &m, sizeof(m));
  return CUDA_SUCCESS;
}

}  // namespace

const char* cudaGetErrorString(cudaError_t) { return "an error of the emulated machine"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {"emulated Hopper", 9, 0, 4, 232448};
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* v) {
  *v = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* v) { return cudaDriverGetVersion(v); }
cudaError_t cudaMalloc(void** p, size_t bytes) {
  *p = std::aligned_alloc(1024, (bytes + 1023) / 1024 * 1024);
  return *p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) { return cudaMalloc(p, bytes); }
cudaError_t cudaFreeHost(void* p) { return cudaFree(p); }
cudaError_t cudaMemset(void* p, int byte, size_t bytes) {
  emulator::run_all();
  std::memset(p, byte, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind) {
  emulator::run_all();
  std::memcpy(dst, src, bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  emulator::run_all();
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaDeviceSynchronize(); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  *s = static_cast<cudaStream_t>(std::malloc(1));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) { return cudaFree(s); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                     unsigned long long* id) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 0;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  *e = static_cast<cudaEvent_t>(std::malloc(1));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) { return cudaFree(e); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** f, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult*) {
  *f = reinterpret_cast<void*>(&encode);
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* kernel, dim3 blocks, dim3 threads, void** args,
                             size_t shared_bytes, cudaStream_t stream) {
  namespace m = monomoe;
  emulator::Launch l{{}, blocks.x, threads.x, 1, shared_bytes};
  if (kernel == m::sm90::schedule_kernel_address()) {
    const auto copy = *static_cast<const m::cuda::ScheduleLaunch*>(args[0]);
    l.body = [copy] { m::sm90::schedule_kernel(copy); };
  } else if (kernel == m::sm90::meet_kernel_address()) {
    const auto copy = *static_cast<const m::cuda::MeetLaunch*>(args[0]);
    l.body = [copy] { m::sm90::meet_kernel(copy); };
  } else {
    const bool backward{kernel == m::sm90::pass_kernel_address(true)};
    auto copy = std::make_shared<m::cuda::Launch>(*static_cast<const m::cuda::Launch*>(args[0]));
    l.cluster = m::sm90::kPair;
    l.body = [copy, backward] {
      if (backward) {
        m::sm90::backward_kernel(*copy);
      } else {
        m::sm90::forward_kernel(*copy);
      }
    };
  }
  emulator::queue.push_back({std::move(l), stream});
  return cudaSuccess;
}
