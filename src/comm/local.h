// Transport of virtual ranks: all heaps in this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/sym_heap.h"

namespace monomoe {

/// 64-byte aligned memory that only grows; contents are lost when it does.
class Arena {
 public:
  /// At least `bytes`; new memory is filled with `fill`.
  void reserve(int64_t bytes, uint8_t fill);
  void fill(uint8_t byte);
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t bytes_{0};
};

class LocalHeaps {
 public:
  explicit LocalHeaps(int32_t ranks) : ranks_(static_cast<size_t>(ranks)) {}

  /// Room for the regions and flags of one rank. New flags and words hold `epoch`.
  void reserve(int32_t rank, int64_t bytes, int64_t arrivals, int64_t flags, uint32_t epoch,
               uint8_t fill);
  /// All flags and words of all ranks hold `epoch` afterwards.
  void set_epoch(uint32_t epoch);
  void fill(uint8_t byte);
  [[nodiscard]] HeapView view(int32_t rank);
  /// What the regions of one rank lie in.
  [[nodiscard]] const Arena& memory(int32_t rank) const {
    return ranks_[static_cast<size_t>(rank)].data;
  }

 private:
  struct Rank {
    Arena data;
    std::vector<int32_t> arrivals;
    std::vector<int32_t> stage_flags;
    std::vector<LaunchWord> words;
    int32_t abort{0};
  };
  std::vector<Rank> ranks_;
};

}  // namespace monomoe
