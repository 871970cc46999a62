// Routing tables from ids, all ranks of a local group. Counting and prefix sums only.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/routing.h"

namespace monomoe::cpu {

/// One rank's ids, read through any strides.
struct IdsView {
  const void* data{nullptr};
  bool wide{false};  // int64 instead of int32
  int64_t row{0};    // elements
  int64_t col{0};

  [[nodiscard]] int64_t at(int64_t t, int64_t k) const {
    const int64_t i{t * row + k * col};
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

/// Writes the tables of all ranks. `dims[r]` has rank, ranks, tokens, experts, top_k; `words[r]`
/// has room for table_layout(dims[r], tile, group tokens). Ids must be legal.
void build_tables(const std::vector<Dims>& dims, const TileShape& tile, const IdsView& ids,
                  const std::vector<int32_t*>& words);

}  // namespace monomoe::cpu
