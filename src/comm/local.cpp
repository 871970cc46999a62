#include "comm/local.h"

#include <cstring>
#include <new>

#include "base/int_math.h"

namespace monomoe {

constexpr std::align_val_t kAlign{64};

void Arena::Free::operator()(std::byte* p) const { ::operator delete(p, kAlign); }

void Arena::reserve(int64_t bytes, uint8_t fill) {
  if (bytes <= bytes_) return;
  bytes = round_up<int64_t>(bytes, 4096);
  data_.reset();
  bytes_ = 0;
  data_.reset(static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes), kAlign)));
  bytes_ = bytes;
  this->fill(fill);
}

void Arena::fill(uint8_t byte) {
  if (bytes_ > 0) std::memset(data_.get(), byte, static_cast<size_t>(bytes_));
}

void LocalHeaps::reserve(int32_t rank, int64_t bytes, int64_t arrivals, int64_t flags,
                         uint32_t epoch, uint8_t fill) {
  Rank& r{ranks_[static_cast<size_t>(rank)]};
  r.data.reserve(bytes, fill);
  if (r.arrivals.size() < static_cast<size_t>(arrivals)) {
    r.arrivals.resize(static_cast<size_t>(arrivals));
  }
  if (r.stage_flags.size() < static_cast<size_t>(flags)) {
    r.stage_flags.resize(static_cast<size_t>(flags), static_cast<int32_t>(epoch));
  }
  if (r.words.empty()) r.words.resize(ranks_.size(), LaunchWord::idle(epoch));
}

void LocalHeaps::set_epoch(uint32_t epoch) {
  for (Rank& r : ranks_) {
    for (int32_t& f : r.stage_flags) f = static_cast<int32_t>(epoch);
    for (LaunchWord& w : r.words) w = LaunchWord::idle(epoch);
  }
}

void LocalHeaps::fill(uint8_t byte) {
  for (Rank& r : ranks_) r.data.fill(byte);
}

HeapView LocalHeaps::view(int32_t rank) {
  Rank& r{ranks_[static_cast<size_t>(rank)]};
  return {r.data.data(), r.arrivals.data(), r.stage_flags.data(), r.words.data(), &r.abort};
}

}  // namespace monomoe
