#include "runtime/cpu_backend.h"

#include <thread>

#include "arch/cpu/schedule.h"
#include "arch/cpu/worker.h"
#include "base/expect.h"
#include "plan/epoch.h"
#include "runtime/operands.h"
#include "runtime/planner.h"

namespace monomoe {
namespace {

/// Memory of all ranks for these plans, and every rank's view of it.
std::vector<cpu::RankLaunch> bind_memory(Group::Impl& g, const std::vector<RankPlan>& plans,
                                         uint32_t epoch) {
  const uint8_t fill{g.hooks.fill};
  std::vector<cpu::RankLaunch> out(plans.size());
  std::vector<Layout> layouts;
  layouts.reserve(plans.size());
  for (const RankPlan& p : plans) layouts.push_back(workspace_layout(p.facts));
  for (size_t i{0}; i < plans.size(); ++i) {
    const RankPlan& p{plans[i]};
    const auto rank = static_cast<int32_t>(i);
    g.heaps.reserve(rank, layouts[i].heap_bytes, counter_count(p.facts, Counter::kArrival),
                    counter_count(p.facts, Counter::kStageFlag), epoch - 1, fill);
    g.local[i].reserve(layouts[i].local_bytes, fill);
  }
  for (size_t i{0}; i < plans.size(); ++i) {
    cpu::RankLaunch& r{out[i]};
    r.plan = plans[i].plan;
    r.plan.epoch = epoch;
    r.local = g.local[i].data();
    r.layout = layouts[i];
    r.heap_layouts = layouts;
    r.counter_layout = counter_layout(plans[i].facts);
    g.counters[i].reserve(r.counter_layout.words);
    for (size_t peer{0}; peer < plans.size(); ++peer) {
      r.heaps.push_back(g.heaps.view(static_cast<int32_t>(peer)));
    }
    r.chain = out[0].region<float>(Region::kChain);
  }
  g.hooks.layouts = layouts;
  // Nothing can fail any more: the epoch and its half of the counters are used from here on.
  g.epoch = epoch;
  if (renews_flags(epoch)) g.heaps.set_epoch(epoch - 1);
  for (size_t i{0}; i < out.size(); ++i) {
    out[i].counters = g.counters[i].begin_launch(epoch, out[i].counter_layout.words);
    out[i].chain_counters =
        out[0].counters + out[0].counter_layout.at[static_cast<int32_t>(Counter::kSharedChain)];
  }
  return out;
}

/// At entry a launch tells every peer who it is.
void write_launch_words(const std::vector<cpu::RankLaunch>& ranks, const TestHooks& hooks) {
  for (const cpu::RankLaunch& r : ranks) {
    const int32_t rank{r.plan.dims.rank};
    if (rank == hooks.absent_rank) continue;
    const LaunchWord word{launch_word(r.plan, rank == hooks.odd_rank ? hooks.odd : 0)};
    for (const HeapView& h : r.heaps) h.words[rank] = word;
  }
}

/// Ranks that are in different calls must not touch each other. All words are there already, so
/// one look is enough.
std::optional<Fault> compare_calls(const std::vector<cpu::RankLaunch>& ranks) {
  const uint32_t epoch{ranks[0].plan.epoch};
  const LaunchWord* const words{ranks[0].heaps[0].words};
  const auto num_ranks = static_cast<int32_t>(ranks.size());
  int32_t own{0};
  while (own < num_ranks && words[own].epoch() != epoch) ++own;
  for (int32_t peer{own + 1}; peer < num_ranks; ++peer) {
    if (words[peer].epoch() != epoch || words[peer].stamp == words[own].stamp) continue;
    Fault f;
    f.reason = FaultReason::kCalls;
    f.rank = own;
    f.peer = peer;
    f.epoch = epoch;
    f.own = words[own];
    f.other = words[peer];
    return f;
  }
  return std::nullopt;
}

class CpuBackend final : public Backend {
 public:
  [[nodiscard]] const char* name() const override { return "cpu"; }
  [[nodiscard]] Arch arch() const override { return Arch::kCpu; }
  [[nodiscard]] bool serves(const Device& device) const override {
    return device.kind == DeviceKind::kCpu;
  }

  [[nodiscard]] PlanTraits traits(Group::Impl& /*g*/, const Device& /*device*/) override {
    return cpu_traits();
  }

  void schedule(Group::Impl& g, const Tensor& ids, const Schedule& out, void* /*stream*/) override {
    std::vector<Dims> dims;
    std::vector<int32_t*> words;
    for (const RankTables& t : rank_tables(g, out)) {
      dims.push_back(t.dims);
      words.push_back(t.words);
    }
    cpu::build_tables(dims, g.tile,
                      {ids.data, ids.dtype == DType::kI64, ids.stride[0], ids.stride[1]}, words);
  }

  std::optional<Fault> run(Group::Impl& g, const Call& call,
                           const std::vector<RankPlan>& plans) override {
    std::vector<cpu::RankLaunch> ranks{bind_memory(g, plans, g.epoch + 1)};
    for (size_t i{0}; i < ranks.size(); ++i)
      static_cast<Operands&>(ranks[i]) = bind_operands(call, plans[i]);
    const TestHooks& h{g.hooks};
    write_launch_words(ranks, h);
    if (auto fault = compare_calls(ranks)) return fault;
    const cpu::RunResult result{
        cpu::run(ranks, {h.order, h.seed, plans[0].plan.knobs.workers, g.timeout_s, h.absent_rank,
                         h.absent_s, h.held_rank, h.held_at})};
    g.hooks.tasks_done = result.tasks_done;
    return result.fault;
  }

  std::optional<std::string> poll(Group::Impl& /*g*/) override { return std::nullopt; }
};

}  // namespace

PlanTraits cpu_traits() {
  return {Arch::kCpu, max_of(1, static_cast<int32_t>(std::thread::hardware_concurrency())), true};
}

Backend& cpu_backend() {
  static CpuBackend backend;
  return backend;
}

}  // namespace monomoe
