// The part of the runtime interface that backend.cpp names, over host memory. Launches wait until
// the host synchronises; those of different streams that follow each other then run side by side.
#pragma once

#include <cstddef>
#include <cstdint>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorUnknown = 999,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureWrongThread = 908
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
constexpr int CUDART_VERSION{13000};
constexpr unsigned cudaEventDisableTiming{2};
constexpr unsigned cudaHostAllocMapped{2};
constexpr unsigned cudaHostAllocPortable{1};
constexpr unsigned cudaStreamNonBlocking{1};
constexpr unsigned long long cudaEnableDefault{0};

struct Stream;
using cudaStream_t = Stream*;
struct Event;
using cudaEvent_t = Event*;

struct dim3 {
  explicit dim3(unsigned x_) : x{x_} {}
  unsigned x;
};

struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
  size_t sharedMemPerBlockOptin;
};

const char* cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device);
cudaError_t cudaDriverGetVersion(int* v);
cudaError_t cudaRuntimeGetVersion(int* v);
cudaError_t cudaMalloc(void** p, size_t bytes);
cudaError_t cudaFree(void* p);
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* p);
cudaError_t cudaMemset(void* p, int byte, size_t bytes);
cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* status,
                                     unsigned long long* id);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute what, int value);
cudaError_t cudaLaunchKernel(const void* kernel, dim3 blocks, dim3 threads, void** args,
                             size_t shared_bytes, cudaStream_t s);
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** f, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* found);
