#include "monomoe/group.h"

#include <cmath>
#include <cstring>
#include <map>

#include "base/int_math.h"
#include "plan/epoch.h"
#include "runtime/backend.h"
#include "runtime/group_impl.h"
#include "runtime/validate.h"

namespace monomoe {
namespace {

/// Ids of living groups. A group removes itself when it dies.
struct Registry {
  std::mutex mutex;
  std::map<int64_t, std::weak_ptr<Group>> groups;
  int64_t next{1};
};

Registry& registry() {
  static Registry r;
  return r;
}

}  // namespace

void CounterMemory::reserve(int64_t count) {
  if (count <= capacity) return;
  const int64_t wanted{round_up<int64_t>(count + count / 2, 64)};
  std::vector<int32_t> grown(static_cast<size_t>(2 * wanted));
  words.swap(grown);
  capacity = wanted;
  extent[0] = extent[1] = 0;
}

int32_t* CounterMemory::begin_launch(uint32_t epoch, int64_t count) {
  const int32_t half{counter_half(epoch)};
  int32_t* const other{words.data() + (1 - half) * capacity};
  std::memset(other, 0, sizeof(int32_t) * static_cast<size_t>(extent[1 - half]));
  extent[1 - half] = 0;
  extent[half] = count;
  return words.data() + half * capacity;
}

void CounterMemory::clear() {
  words.assign(words.size(), 0);
  extent[0] = extent[1] = 0;
}

Group::Impl::Impl(int32_t num_ranks, double timeout)
    : ranks{num_ranks},
      timeout_s{timeout},
      heaps{num_ranks},
      local(static_cast<size_t>(num_ranks)),
      counters(static_cast<size_t>(num_ranks)) {}

void Group::Impl::require_usable() {
  for (Backend* b : available_backends()) {
    if (closed || fault) break;
    fault = b->poll(*this);
  }
  if (closed) refuse_closed_group();
  if (fault) throw Error{ErrorCode::kFault, *fault};
}

Group::Group(std::unique_ptr<Impl> impl) : impl_{std::move(impl)} {}

Group::~Group() {
  Registry& r{registry()};
  const std::lock_guard lock{r.mutex};
  r.groups.erase(impl_->id);
}

std::shared_ptr<Group> Group::local(int64_t ranks, const GroupOptions& options) {
  check_group(ranks, options.timeout_s);
  std::shared_ptr<Group> group{
      new Group{std::make_unique<Impl>(static_cast<int32_t>(ranks), options.timeout_s)}};
  Registry& r{registry()};
  const std::lock_guard lock{r.mutex};
  group->impl_->id = r.next++;
  r.groups[group->impl_->id] = group;
  return group;
}

std::shared_ptr<Group> Group::find(int64_t id) {
  Registry& r{registry()};
  const std::lock_guard lock{r.mutex};
  const auto it = r.groups.find(id);
  std::shared_ptr<Group> group{it == r.groups.end() ? nullptr : it->second.lock()};
  if (!group) refuse_closed_group();
  return group;
}

int64_t Group::id() const { return impl_->id; }
int64_t Group::ranks() const { return impl_->ranks; }

bool Group::closed() const {
  const std::lock_guard lock{impl_->mutex};
  return impl_->closed;
}

void Group::check() const {
  const std::lock_guard lock{impl_->mutex};
  impl_->require_usable();
}

void Group::close() {
  const std::lock_guard lock{impl_->mutex};
  impl_->closed = true;
  impl_->heaps = LocalHeaps{impl_->ranks};
  impl_->local.clear();
  impl_->counters.clear();
  impl_->devices.clear();
}

}  // namespace monomoe
