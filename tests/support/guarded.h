// A tensor in the middle of known bytes: what a call writes besides its elements shows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "monomoe/tensor.h"

namespace monomoe::testing {

/// Strides of [.., rows, width]: rows `gap` elements further apart than they need, matrices too.
inline std::vector<int64_t> strides_with_gap(const std::vector<int64_t>& shape, int64_t gap) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d{shape.size() - 1}; d > 0; --d) strides[d - 1] = strides[d] * shape[d] + gap;
  return strides;
}

class Guarded {
 public:
  static constexpr std::byte kGuard{0xA5};

  Guarded() = default;
  Guarded(DType dtype, std::vector<int64_t> shape, int64_t gap = 0)
      : Guarded{dtype, shape, strides_with_gap(shape, gap)} {}
  Guarded(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides)
      : dtype_{dtype}, shape_{std::move(shape)}, strides_{std::move(strides)} {
    int64_t last{0};
    for (size_t d{0}; d < shape_.size(); ++d) last += (shape_[d] - 1) * strides_[d];
    const int64_t bytes{std::max<int64_t>(0, last + 1) * item_bytes() + 2 * kMargin};
    blocks_.assign(static_cast<size_t>(bytes) / sizeof(Block) + 1, Block{});
    std::fill_n(begin(), blocks_.size() * sizeof(Block), kGuard);
  }

  [[nodiscard]] int64_t size() const {
    int64_t n{1};
    for (const int64_t s : shape_) n *= s;
    return n;
  }
  [[nodiscard]] Tensor tensor() {
    Tensor t;
    t.data = begin() + kMargin;
    t.ndim = static_cast<int32_t>(shape_.size());
    std::copy(shape_.begin(), shape_.end(), t.shape.begin());
    std::copy(strides_.begin(), strides_.end(), t.stride.begin());
    t.dtype = dtype_;
    return t;
  }

  /// Element number `i` in row-major order, wherever it lies.
  template <class T>
  T& at(int64_t i) {
    return *reinterpret_cast<T*>(begin() + element_offset(i));
  }

  /// Are all bytes that belong to no element as they were?
  [[nodiscard]] bool intact() {
    std::vector<bool> element(blocks_.size() * sizeof(Block));
    for (int64_t i{0}; i < size(); ++i) {
      const auto at = static_cast<size_t>(element_offset(i));
      for (size_t b{0}; b < static_cast<size_t>(item_bytes()); ++b) element[at + b] = true;
    }
    for (size_t b{0}; b < element.size(); ++b) {
      if (!element[b] && begin()[b] != kGuard) return false;
    }
    return true;
  }

  /// All bytes, to be compared with later ones.
  [[nodiscard]] std::vector<std::byte> bytes() {
    return {begin(), begin() + blocks_.size() * sizeof(Block)};
  }

 private:
  static constexpr int64_t kMargin{256};  // bytes in front and behind
  struct alignas(64) Block {
    std::byte bytes[64];
  };

  std::byte* begin() { return reinterpret_cast<std::byte*>(blocks_.data()); }
  [[nodiscard]] int64_t item_bytes() const {
    switch (dtype_) {
      case DType::kU8:
        return 1;
      case DType::kBf16:
        return 2;
      case DType::kI64:
        return 8;
      default:
        return 4;
    }
  }
  [[nodiscard]] int64_t element_offset(int64_t i) const {
    int64_t offset{0};
    for (size_t d{shape_.size()}; d-- > 0; i /= shape_[d]) offset += i % shape_[d] * strides_[d];
    return kMargin + offset * item_bytes();
  }

  DType dtype_{DType::kF32};
  std::vector<int64_t> shape_;
  std::vector<int64_t> strides_;
  std::vector<Block> blocks_;
};

}  // namespace monomoe::testing
