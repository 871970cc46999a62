#include "arch/cpu/worker.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "arch/cpu/combine.h"
#include "arch/cpu/compute.h"
#include "arch/cpu/mover.h"
#include "base/expect.h"
#include "plan/epoch.h"
#include "plan/order.h"

namespace monomoe::cpu {
namespace {

using Clock = std::chrono::steady_clock;

void run_body(const RankLaunch& r, const Task& t, Scratch& s) {
  switch (t.kind) {
    case Kind::kStage:
      return stage(r, t);
    case Kind::kDispatch:
      return dispatch(r, t);
    case Kind::kCombine:
      return combine(r, t);
    case Kind::kGateUp:
      return gate_up(r, routed_tile(r, t), t.col, s);
    case Kind::kDown: {
      const RowTile tile{routed_tile(r, t)};
      down(r, tile, t.col, s);
      return push_rows(r, tile, t, s);
    }
    case Kind::kDgradDown:
      return dgrad_down(r, routed_tile(r, t), t.col, s);
    case Kind::kDgradGateUp: {
      const RowTile tile{routed_tile(r, t)};
      dgrad_gate_up(r, tile, t.col, s);
      return push_rows(r, tile, t, s);
    }
    case Kind::kWgradGateUp:
    case Kind::kWgradDown:
      return wgrad(r, t, s);
    case Kind::kSharedGateUp:
      return gate_up(r, shared_tile(r, t), t.col, s);
    case Kind::kSharedScore:
      return shared_score(r, t);
    case Kind::kSharedDown: {
      const RowTile tile{shared_tile(r, t)};
      down(r, tile, t.col, s);
      return store_shared_out(r, tile, t, s);
    }
    case Kind::kSharedDgradDown:
      return dgrad_down(r, shared_tile(r, t), t.col, s);
    case Kind::kSharedDscore:
      return shared_dscore(r, t);
    case Kind::kSharedDgradGateUp: {
      const RowTile tile{shared_tile(r, t)};
      dgrad_gate_up(r, tile, t.col, s);
      return store_shared_out(r, tile, t, s);
    }
    case Kind::kSharedWgradGateUp:
    case Kind::kSharedWgradDown:
      return shared_wgrad(r, t, s);
    case Kind::kSharedWgradScore:
      return shared_wgrad_score(r, t, s);
  }
}

/// The first wait of `t` that does not hold yet.
struct Pending {
  CounterRef counter{};
  int32_t seen{0};
  int32_t wanted{0};
};
std::optional<Pending> first_pending(const RankLaunch& r, const Task& t) {
  std::optional<Pending> pending;
  for_each_wait(r.plan, t, [&](const CounterRef& c, int32_t wanted) {
    if (pending) return;
    const int32_t seen{r.load(c)};
    if (!satisfied(c, seen, wanted)) pending = Pending{c, seen, wanted};
  });
  return pending;
}

/// Where a GPU waits, the CPU asserts: counters stop at their target.
void assert_waits(const RankLaunch& r, const Task& t) {
  for_each_wait(r.plan, t, [&](const CounterRef& c, int32_t wanted) {
    const int32_t seen{r.load(c)};
    expect(satisfied(c, seen, wanted), "a task started before a counter reached its target");
    expect(c.id == Counter::kStageFlag || seen == wanted, "a counter went past its target");
  });
}

void fill_fault(const RankLaunch& r, Line line, const Task& t, const Pending& p, double waited_s,
                Fault* f) {
  f->rank = r.plan.dims.rank;
  f->line = line;
  f->task = t;
  f->counter = p.counter;
  f->seen = p.seen;
  f->wanted = p.wanted;
  f->epoch = r.plan.epoch;
  f->backward = r.plan.backward;
  f->waited_s = waited_s;
  const HeapView& own{r.heaps[static_cast<size_t>(r.plan.dims.rank)]};
  for (int32_t peer{0}; peer < r.plan.dims.ranks; ++peer) {
    if (!reached(own.words[peer].epoch(), r.plan.epoch)) f->missing.push_back(peer);
  }
}

/// Nobody waits for anything: what is left is the absent rank's own work.
Fault only_missing(const RankLaunch& any, int32_t absent_rank, double waited_s) {
  Fault f;
  f.reason = FaultReason::kIdle;
  f.rank = absent_rank;
  f.epoch = any.plan.epoch;
  f.backward = any.plan.backward;
  f.waited_s = waited_s;
  f.missing.push_back(absent_rank);
  return f;
}

/// Ticket positions of a rank. A thread that finds the task at the head ready takes it.
struct Lines {
  std::atomic<int32_t> next[kNumLines]{};
};

class Threads {
 public:
  Threads(const std::vector<RankLaunch>& ranks, const RunOptions& options)
      : ranks_{ranks}, options_{options}, lines_(ranks.size()), done_(ranks.size()) {}

  RunResult run() {
    std::vector<std::thread> helpers;
    const auto most = static_cast<int32_t>(4 * std::max(1U, std::thread::hardware_concurrency()));
    const int32_t wanted{std::min(options_.threads, most)};
    helpers.reserve(static_cast<size_t>(wanted));
    try {
      for (int32_t i{1}; i < wanted; ++i) helpers.emplace_back([this, i] { guarded(i); });
    } catch (const std::exception&) {
      // The system gives no more threads, or no memory for one: those there are do it all, with
      // the same bits.
    }
    guarded(0);
    for (std::thread& t : helpers) t.join();
    if (error_) std::rethrow_exception(error_);
    RunResult result;
    result.fault = fault_;
    for (const auto& d : done_) result.tasks_done.push_back(d.load());
    return result;
  }

 private:
  void guarded(int32_t worker) {
    try {
      loop(worker);
    } catch (...) {
      const std::lock_guard lock{mutex_};
      if (!error_) error_ = std::current_exception();
      stop_.store(true);
    }
  }

  void loop(int32_t worker) {
    Scratch scratch{ranks_[0].plan.tile};
    std::vector<Cursor> cursors;
    cursors.reserve(ranks_.size());
    for (const RankLaunch& r : ranks_) cursors.emplace_back(r.plan);
    int64_t seen_progress{-1};
    Clock::time_point idle_since{};
    for (int32_t idle{0}; !stop_.load(std::memory_order_relaxed);) {
      bool ended{true};
      if (sweep(worker, cursors, scratch, &ended)) {
        idle = 0;
        continue;
      }
      if (ended) return;
      const int64_t progress{progress_.load()};
      if (idle++ == 0 || progress != seen_progress || running_.load() > 0) {
        seen_progress = progress;
        idle_since = Clock::now();
      }
      const double waited{std::chrono::duration<double>(Clock::now() - idle_since).count()};
      if (waited > options_.timeout_s) return report(worker, cursors, waited);
      if (idle < 64) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds{50});
      }
    }
  }

  /// Tries every line of every rank once; true if a task was executed.
  bool sweep(int32_t worker, std::vector<Cursor>& cursors, Scratch& scratch, bool* ended) {
    bool ran{false};
    for (size_t i{0}; i < ranks_.size(); ++i) {
      const size_t r{(i + static_cast<size_t>(worker)) % ranks_.size()};
      for (int32_t line{0}; line < kNumLines; ++line) {
        Task task;
        const bool absent{static_cast<int32_t>(r) == options_.absent_rank && is_early()};
        std::atomic<int32_t>& next{lines_[r].next[line]};
        int32_t ticket{next.load(std::memory_order_relaxed)};
        if (!cursors[r].seek(ranks_[r].plan, static_cast<Line>(line), ticket, &task)) continue;
        *ended = false;
        if (absent || first_pending(ranks_[r], task)) continue;
        running_.fetch_add(1);
        if (next.compare_exchange_strong(ticket, ticket + 1)) {
          assert_waits(ranks_[r], task);
          execute(ranks_[r], task, scratch);
          done_[r].fetch_add(1, std::memory_order_relaxed);
          progress_.fetch_add(1);
          ran = true;
        }
        running_.fetch_sub(1);
      }
    }
    return ran;
  }

  /// Before an absent rank comes.
  [[nodiscard]] bool is_early() const {
    return std::chrono::duration<double>(Clock::now() - begin_).count() < options_.absent_s;
  }

  void report(int32_t worker, std::vector<Cursor>& cursors, double waited) {
    const std::lock_guard lock{mutex_};
    stop_.store(true);
    if (fault_) return;
    for (size_t r{0}; r < ranks_.size(); ++r) {
      for (int32_t line{0}; line < kNumLines; ++line) {
        Task task;
        const int32_t ticket{lines_[r].next[line].load()};
        if (static_cast<int32_t>(r) == options_.absent_rank ||
            !cursors[r].seek(ranks_[r].plan, static_cast<Line>(line), ticket, &task)) {
          continue;
        }
        if (const auto pending = first_pending(ranks_[r], task)) {
          fault_.emplace();
          fault_->worker = worker;
          fill_fault(ranks_[r], static_cast<Line>(line), task, *pending, waited, &*fault_);
          return;
        }
      }
    }
    fault_ = only_missing(ranks_[0], options_.absent_rank, waited);
  }

  const std::vector<RankLaunch>& ranks_;
  const RunOptions& options_;
  const Clock::time_point begin_{Clock::now()};
  std::vector<Lines> lines_;
  std::vector<std::atomic<int64_t>> done_;
  std::atomic<int64_t> progress_{0};
  std::atomic<int32_t> running_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::optional<Fault> fault_;
  std::exception_ptr error_;
};

/// One thread that plays all workers of all ranks. Each line has a window of taken tickets: one in
/// ticket order (a single blocking worker), as many as there are workers in adversarial order.
class Sequential {
 public:
  Sequential(const std::vector<RankLaunch>& ranks, const RunOptions& options)
      : ranks_{ranks}, options_{options}, scratch_{ranks[0].plan.tile}, random_{options.seed} {
    for (const RankLaunch& r : ranks_) {
      const bool free{options_.order == Order::kAdversarial};
      const auto width = static_cast<size_t>(free ? max_of(2, r.plan.knobs.workers) : 1);
      for (int32_t line{0}; line < kNumLines; ++line) {
        windows_.push_back({&r, static_cast<Line>(line), Cursor{r.plan}, 0, width, {}});
      }
    }
    result_.tasks_done.assign(ranks_.size(), 0);
  }

  RunResult run() {
    for (bool released{false};;) {
      if (step(released)) {
        released = false;
        continue;
      }
      if (finished()) return std::move(result_);
      if (released || options_.held_rank < 0) break;
      released = true;  // nothing else can run: the held rank goes on with one task
    }
    report();
    return std::move(result_);
  }

 private:
  struct Window {
    const RankLaunch* rank;
    Line line;
    Cursor cursor;
    int32_t next;
    size_t width;
    std::vector<Task> taken;
  };

  void refill(Window& w) {
    Task t;
    while (w.taken.size() < w.width && w.cursor.seek(w.rank->plan, w.line, w.next, &t)) {
      w.taken.push_back(t);
      ++w.next;
    }
  }

  bool may_run(const Window& w, bool released) const {
    const int32_t rank{w.rank->plan.dims.rank};
    if (rank == options_.absent_rank) return false;
    return rank != options_.held_rank || released ||
           result_.tasks_done[static_cast<size_t>(rank)] < options_.held_at;
  }

  /// Executes one task; false if none can run.
  bool step(bool released) {
    struct Choice {
      Window* window;
      size_t idx;
    };
    std::vector<Choice> ready;
    for (Window& w : windows_) {
      refill(w);
      if (!may_run(w, released)) continue;
      for (size_t i{0}; i < w.taken.size(); ++i) {
        if (!first_pending(*w.rank, w.taken[i])) ready.push_back({&w, i});
      }
      if (options_.order == Order::kTicket && !ready.empty()) break;
    }
    if (ready.empty()) return false;
    const size_t pick{options_.order == Order::kTicket ? 0 : random_() % ready.size()};
    Window& w{*ready[pick].window};
    const Task task{w.taken[ready[pick].idx]};
    w.taken.erase(w.taken.begin() + static_cast<std::ptrdiff_t>(ready[pick].idx));
    assert_waits(*w.rank, task);
    execute(*w.rank, task, scratch_);
    ++result_.tasks_done[static_cast<size_t>(w.rank->plan.dims.rank)];
    return true;
  }

  [[nodiscard]] bool finished() const {
    for (const Window& w : windows_) {
      if (!w.taken.empty()) return false;
    }
    return true;
  }

  void report() {
    for (const Window& w : windows_) {
      if (w.rank->plan.dims.rank == options_.absent_rank || w.taken.empty()) continue;
      if (const auto pending = first_pending(*w.rank, w.taken[0])) {
        result_.fault.emplace();
        fill_fault(*w.rank, w.line, w.taken[0], *pending, 0, &*result_.fault);
        return;
      }
    }
    result_.fault = only_missing(ranks_[0], options_.absent_rank, 0);
  }

  const std::vector<RankLaunch>& ranks_;
  const RunOptions& options_;
  Scratch scratch_;
  std::mt19937_64 random_;
  std::vector<Window> windows_;
  RunResult result_;
};

}  // namespace

void execute(const RankLaunch& r, const Task& t, Scratch& scratch) {
  run_body(r, t, scratch);
  const int32_t target{completion_target(r.plan, t.kind)};
  bool completes{false};
  for_each_signal(r.plan, t,
                  [&](const CounterRef& c, int32_t step) { completes = r.add(c, step) == target; });
  if (!completes || target == 0) return;
  if (r.plan.backward) push_scalars(r, routed_tile(r, t), t);
  for_each_arrival(r.plan, t, [&](const CounterRef& c, int32_t step) { (void)r.add(c, step); });
}

RunResult run(const std::vector<RankLaunch>& ranks, const RunOptions& options) {
  expect(!ranks.empty(), "a launch has at least one rank");
  if (options.order == Order::kThreads) return Threads{ranks, options}.run();
  return Sequential{ranks, options}.run();
}

}  // namespace monomoe::cpu
