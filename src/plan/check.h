// Proves properties of a sequence of launches over all ranks, by running them as integers.
//
//   1. Tasks: decode is what the cursor says; each task of the launch exists exactly once; whatever
//      touches row tile n comes before what touches tile n + ring.
//   2. No deadlock: with ONE blocking worker and ONE blocking mover a rank, in ticket order, every
//      launch ends. More workers only run ahead of that.
//   3. Counters balance: a wait finds its target exactly, and what raises the counter further comes
//      after the waiter. So a wait always means the same set of finished tasks.
//   4. Memory: every read comes after all writes of its version, every write after everything that
//      touched older versions; arrival counters, slots, staging and counter halves included. Every
//      region that is touched has bytes in the workspace.
//
// 2 needs one order only: a task that can run stays able to. 4 holds for every order: it is asked
// of a task's ancestors (whose signals it waited for, and theirs), which by 3 are the same in every
// order. Tasks of one worker are not ordered by that; launches of one rank are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/access.h"
#include "plan/check_counters.h"
#include "plan/check_memory.h"
#include "plan/check_tasks.h"
#include "plan/order.h"

namespace monomoe {

/// When may a rank's launch begin?
enum class Start : uint8_t {
  kAlone,   // once its own launch before has ended
  kJoined,  // once all ranks' launches before have ended: calls of a local group
};

/// What the checker takes as the plan's rules. Tests derive from it to break one.
struct PlanRules {
  static std::vector<Task> line(const Plan& p, Line l) {
    std::vector<Task> tasks;
    Cursor cursor{p};
    Task t{};
    for (int32_t ticket{0}; cursor.seek(p, l, ticket, &t); ++ticket) tasks.push_back(t);
    return tasks;
  }
  template <class F>
  static void waits(const Plan& p, const Task& t, const F& wait) {
    for_each_wait(p, t, wait);
  }
  template <class F>
  static void signals(const Plan& p, const Task& t, const F& raise) {
    for_each_signal(p, t, raise);
  }
  template <class F>
  static void arrivals(const Plan& p, const Task& t, const F& raise) {
    for_each_arrival(p, t, raise);
  }
  static int32_t completion(const Plan& p, Kind k) { return completion_target(p, k); }
};

namespace check {

/// Runs the launches with one blocking worker and one blocking mover a rank.
template <class Rules>
class Run {
 public:
  Run(const std::vector<Launch>& launches, Start start, Violations& out)
      : launches_{launches},
        start_{start},
        out_{out},
        ranks_(launches.front().plans.size()),
        lines_{lines_of(launches)},
        first_{number()},
        sets_{num_nodes_, num_nodes_},
        memory_{sets_, out, [this](int32_t node) { return describe_node(node); }},
        board_{launches, sets_, memory_, out,
               [this](int32_t node) { return describe_node(node); }} {
    for (Rank& r : ranks_) {
      r.before = sets_.add();
      r.all = sets_.add();
    }
  }

  void run() {
    bool moved{true};
    while (moved && !out_.full()) {
      moved = false;
      for (size_t r{0}; r < ranks_.size(); ++r) moved = advance(r) || moved;
    }
    if (out_.full()) return;
    for (size_t r{0}; r < ranks_.size(); ++r) report_stuck(r);
    if (out_.list().empty()) board_.end();
  }

  [[nodiscard]] const Lines& lines(size_t launch, size_t rank) const {
    return lines_[launch * ranks_.size() + rank];
  }

 private:
  struct Rank {
    size_t launch{0};
    bool begun{false};
    std::array<size_t, kNumLines> next{};
    int32_t before{0};  // sets: what came before this launch
    int32_t all{0};     // and with everything that was done since
  };
  /// Node numbers of one launch on one rank: tasks line by line, then pushes, then the clearing.
  struct First {
    std::array<int32_t, kNumLines> task;
    int32_t push;
    int32_t clear;
  };

  static std::vector<Lines> lines_of(const std::vector<Launch>& launches) {
    std::vector<Lines> all;
    for (const Launch& launch : launches) {
      for (const Plan& p : launch.plans) {
        all.push_back({Rules::line(p, Line::kMain), Rules::line(p, Line::kMove),
                       Rules::line(p, Line::kCombine)});
      }
    }
    return all;
  }

  std::vector<First> number() {
    std::vector<First> all;
    for (size_t i{0}; i < lines_.size(); ++i) {
      First f{};
      for (size_t l{0}; l < lines_[i].size(); ++l) {
        f.task[l] = num_nodes_;
        num_nodes_ += static_cast<int32_t>(lines_[i][l].size());
      }
      f.push = num_nodes_;
      f.clear = f.push + plan(i / ranks_.size(), i % ranks_.size()).tables.num_tiles();
      num_nodes_ = f.clear + 1;
      all.push_back(f);
    }
    return all;
  }

  [[nodiscard]] const Plan& plan(size_t launch, size_t rank) const {
    return launches_[launch].plans[rank];
  }
  [[nodiscard]] const First& first(size_t launch, size_t rank) const {
    return first_[launch * ranks_.size() + rank];
  }

  std::string describe_node(int32_t node) const {
    size_t i{first_.size() - 1};
    while (first_[i].task[0] > node) --i;
    const First& f{first_[i]};
    std::string s{"launch " + std::to_string(i / ranks_.size()) + ", rank " +
                  std::to_string(i % ranks_.size()) + ": "};
    if (node == f.clear) return s + "clearing of counters";
    if (node >= f.push) return s + "push of row tile " + std::to_string(node - f.push);
    size_t l{kNumLines - 1};
    while (f.task[l] > node) --l;
    return s + describe(lines_[i][l][static_cast<size_t>(node - f.task[l])]);
  }

  /// One task of each line of a rank, if it can run. False: nothing could.
  bool advance(size_t rank) {
    Rank& r{ranks_[rank]};
    if (r.launch == launches_.size() || (!r.begun && !begin(rank))) return false;
    // The worker looks at the combine line between its tasks; at the end it may block there, which
    // comes to the same here.
    bool moved{false};
    for (const Line l : {Line::kCombine, Line::kMain, Line::kMove}) moved = step(rank, l) || moved;
    const Lines& all{lines(r.launch, rank)};
    for (size_t l{0}; l < all.size(); ++l) {
      if (r.next[l] < all[l].size()) return moved;
    }
    ++r.launch;
    r.begun = false;
    r.next = {};
    return true;
  }

  bool begin(size_t rank) {
    Rank& r{ranks_[rank]};
    if (start_ == Start::kJoined) {
      for (const Rank& other : ranks_) {
        if (other.launch < r.launch) return false;
      }
      for (const Rank& other : ranks_) {
        // Of a rank that has begun this launch (or even ended it): what it began with.
        const bool begun{other.begun || other.launch > r.launch};
        sets_.insert_all(r.before, begun ? other.before : other.all);
      }
    }
    sets_.insert_all(r.before, r.all);
    r.begun = true;
    const int32_t node{first(r.launch, rank).clear};
    sets_.insert_all(node, r.before);
    board_.begin(node, static_cast<int32_t>(r.launch), static_cast<int32_t>(rank));
    finish(r, node);
    return true;
  }

  bool step(size_t rank, Line line) {
    Rank& r{ranks_[rank]};
    const auto l = static_cast<size_t>(line);
    const std::vector<Task>& tasks{lines(r.launch, rank)[l]};
    if (r.next[l] == tasks.size() || out_.full()) return false;
    const Task& t{tasks[r.next[l]]};
    bool ready{true};
    Rules::waits(plan(r.launch, rank), t, [&](const CounterRef& c, int32_t target) {
      ready = ready && board_.holds(static_cast<int32_t>(r.launch), c, target);
    });
    if (!ready) return false;
    execute(r, plan(r.launch, rank), t,
            first(r.launch, rank).task[l] + static_cast<int32_t>(r.next[l]));
    ++r.next[l];
    return true;
  }

  void execute(Rank& r, const Plan& p, const Task& t, int32_t node) {
    const auto launch = static_cast<int32_t>(r.launch);
    const LaunchId id{launch, launches_[r.launch].context};
    sets_.insert_all(node, r.before);
    Rules::waits(
        p, t, [&](const CounterRef& c, int32_t target) { board_.wait(node, launch, c, target); });
    for_each_access(p, t, id, [&](const Access& a) { access(node, r.launch, a); });
    if (t.kind == Kind::kStage) board_.stage(node, launch, p, t.row);
    CounterRef last{};
    int32_t value{0};
    Rules::signals(p, t, [&](const CounterRef& c, int32_t by) {
      last = c;
      value = board_.raise(node, launch, c, by);
    });
    finish(r, node);
    const int32_t target{Rules::completion(p, t.kind)};
    if (target > 0 && value == target) push(r, p, t, last, target);
  }

  /// What the last column tile of a row tile does. It comes after all of them, whichever was last.
  void push(Rank& r, const Plan& p, const Task& t, const CounterRef& done, int32_t target) {
    const auto launch = static_cast<int32_t>(r.launch);
    const LaunchId id{launch, launches_[r.launch].context};
    const int32_t node{first(r.launch, static_cast<size_t>(p.dims.rank)).push + t.row};
    sets_.insert_all(node, r.before);
    board_.wait(node, launch, done, target);
    for_each_push_access(p, t, id, [&](const Access& a) { access(node, r.launch, a); });
    Rules::arrivals(p, t,
                    [&](const CounterRef& c, int32_t by) { board_.raise(node, launch, c, by); });
    finish(r, node);
  }

  void access(int32_t node, size_t launch, const Access& a) {
    const WorkspaceFacts& owner{board_.facts(static_cast<int32_t>(launch), a.place.rank)};
    if (a.place.region < kNumRegions &&
        region_bytes(owner, static_cast<Region>(a.place.region)) == 0) {
      out_.add(describe_node(node) + " touches " + name_of(a.place) + ", which has no bytes");
    }
    memory_.access(node, a);
  }

  void finish(Rank& r, int32_t node) {
    sets_.insert_all(r.all, node);
    sets_.insert(r.all, node);
  }

  void report_stuck(size_t rank) {
    const Rank& r{ranks_[rank]};
    if (r.launch == launches_.size()) return;
    const std::string who{"stuck: launch " + std::to_string(r.launch) + ", rank " +
                          std::to_string(rank)};
    if (!r.begun) return out_.add(who + " cannot begin");
    const Lines& all{lines(r.launch, rank)};
    for (size_t l{0}; l < all.size(); ++l) {
      if (r.next[l] == all[l].size()) continue;
      const Task& t{all[l][r.next[l]]};
      Rules::waits(plan(r.launch, rank), t, [&](const CounterRef& c, int32_t target) {
        const auto launch = static_cast<int32_t>(r.launch);
        if (board_.holds(launch, c, target)) return;
        out_.add(who + ", " + name_of(static_cast<Line>(l)) + " line: " + describe(t) +
                 " waits for " + describe(c) + ", " + std::to_string(board_.value(launch, c)) +
                 " seen, " + std::to_string(target) + " wanted");
      });
    }
  }

  const std::vector<Launch>& launches_;
  Start start_;
  Violations& out_;
  std::vector<Rank> ranks_;
  std::vector<Lines> lines_;
  int32_t num_nodes_{0};
  std::vector<First> first_;
  NodeSets sets_;
  Memory memory_;
  CounterBoard board_;
};

/// What the checker itself relies on.
inline void check_input(const std::vector<Launch>& launches, Violations& out) {
  uint32_t epoch{launches.front().plans.front().epoch};
  for (size_t k{0}; k < launches.size(); ++k, ++epoch) {
    const std::vector<Plan>& plans{launches[k].plans};
    for (size_t r{0}; r < plans.size(); ++r) {
      const Plan& p{plans[r]};
      const bool fits{p.epoch == epoch && p.backward == plans.front().backward &&
                      static_cast<size_t>(p.dims.rank) == r &&
                      static_cast<size_t>(p.dims.ranks) == launches.front().plans.size() &&
                      p.all_x_saved() == plans.front().all_x_saved()};
      if (fits) continue;
      out.add("launch " + std::to_string(k) + ", rank " + std::to_string(r) +
              ": plans of one launch differ in epoch, direction, ranks or whether x is staged");
    }
  }
}

}  // namespace check

/// What is wrong with `launches`, in sentences; empty: nothing.
template <class Rules = PlanRules>
std::vector<std::string> check_launches(const std::vector<Launch>& launches,
                                        Start start = Start::kAlone) {
  check::Violations out;
  if (launches.empty()) return {};
  check::check_input(launches, out);
  if (!out.list().empty()) return out.list();
  check::Run<Rules> run{launches, start, out};
  for (size_t k{0}; k < launches.size(); ++k) {
    for (size_t r{0}; r < launches[k].plans.size(); ++r) {
      const std::string who{"launch " + std::to_string(k) + ", rank " + std::to_string(r) + ": "};
      check::TaskCheck{launches[k].plans[r], run.lines(k, r), who, out};
    }
  }
  run.run();
  return out.list();
}

}  // namespace monomoe
