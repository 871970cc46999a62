// The ranks of one expert-parallel layer and the memory they share.
#pragma once

#include <cstdint>
#include <memory>

namespace monomoe {

struct GroupOptions {
  double timeout_s{600.0};  // budget of every wait, seconds; > 0 and finite
};

/// R ranks. Expert e of E belongs to one rank: ranks own contiguous ranges, the first E mod R ranks
/// one expert more. Calls on one group are serialised by the group.
class Group {
 public:
  /// R virtual ranks in this process: one call drives all of them. `local(1)` is the plain layer.
  /// Errors: kValue for ranks < 1 or a timeout that is not positive and finite.
  static std::shared_ptr<Group> local(int64_t ranks = 1, const GroupOptions& options = {});

  /// The living group with this id, closed or not (ids are never reused). Errors: kState if there
  /// is none.
  static std::shared_ptr<Group> find(int64_t id);

  [[nodiscard]] int64_t id() const;
  [[nodiscard]] int64_t ranks() const;
  [[nodiscard]] bool closed() const;

  /// Raises what an earlier call reported (kFault), and kState if the group is closed.
  void check() const;

  /// Frees the shared memory. Later calls with this group are refused. Closing twice is fine.
  void close();

  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  struct Impl;  // runtime/group_impl.h
  [[nodiscard]] Impl& impl() const { return *impl_; }

 private:
  explicit Group(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace monomoe
