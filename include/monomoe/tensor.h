// What a caller hands us: a pointer with shape, strides, dtype and device. Nothing is owned here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace monomoe {

/// Element type of a tensor. Only the first four are ever accepted; the others exist so that a
/// refusal can name what was given.
enum class DType : uint8_t { kBf16, kF32, kI32, kI64, kU8, kF16, kF64, kI16, kI8, kBool, kOther };

enum class DeviceKind : uint8_t { kCpu, kCuda, kOther };

struct Device {
  DeviceKind kind{DeviceKind::kCpu};
  int32_t index{0};
  friend bool operator==(const Device&, const Device&) = default;
};

/// A strided view of the caller's memory. `ndim == kAbsent` means "not given" (optional tensors).
/// `data` may be null only if the tensor has no elements.
struct Tensor {
  static constexpr int32_t kMaxDims{4};
  static constexpr int32_t kAbsent{-1};

  void* data{nullptr};
  int32_t ndim{kAbsent};
  std::array<int64_t, kMaxDims> shape{};   // elements
  std::array<int64_t, kMaxDims> stride{};  // elements
  DType dtype{DType::kBf16};
  Device device{};

  [[nodiscard]] bool given() const { return ndim != kAbsent; }
  [[nodiscard]] int64_t numel() const {
    int64_t n{1};
    for (int32_t i{0}; i < ndim; ++i) n *= shape[static_cast<size_t>(i)];
    return ndim < 0 ? 0 : n;
  }
};

/// A contiguous tensor over `data`. Example: `contiguous(p, DType::kBf16, T, H)`.
template <class... Extents>
Tensor contiguous(void* data, DType dtype, Extents... extents) {
  static_assert(sizeof...(Extents) <= static_cast<size_t>(Tensor::kMaxDims));
  Tensor t;
  t.data = data;
  t.dtype = dtype;
  t.ndim = static_cast<int32_t>(sizeof...(Extents));
  t.shape = {static_cast<int64_t>(extents)...};
  int64_t step{1};
  for (int32_t i{t.ndim - 1}; i >= 0; --i) {
    t.stride[static_cast<size_t>(i)] = step;
    step *= t.shape[static_cast<size_t>(i)];
  }
  return t;
}

}  // namespace monomoe
