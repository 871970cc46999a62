#include "runtime/cpu_backend.h"

#include "arch/cpu/schedule.h"
#include "arch/cpu/worker.h"
#include "base/expect.h"
#include "plan/epoch.h"
#include "runtime/planner.h"

namespace monomoe {
namespace {

cpu::Rows rows_of(const Tensor& t, int64_t first_row) {
  if (!t.given()) return {};
  const Bf16* data{static_cast<const Bf16*>(t.data)};
  if (t.ndim == 3) {
    return {data == nullptr ? data : data + first_row * t.stride[0], t.stride[1], t.stride[0]};
  }
  return {data == nullptr ? data : data + first_row * t.stride[0], t.stride[0], 0};
}

cpu::GradOut grad_of(const Tensor& t, int64_t first_matrix) {
  if (!t.given()) return {};
  if (t.ndim == 1) return {t.data, 0, 0};
  if (t.ndim == 2) return {t.data, t.stride[0], 0};
  const int64_t item{t.dtype == DType::kF32 ? 4 : 2};
  return {static_cast<std::byte*>(t.data) + first_matrix * t.stride[0] * item, t.stride[1],
          t.stride[0]};
}

cpu::Scalars scalars_of(const Tensor& t, int64_t first_row) {
  if (!t.given()) return {};
  return {static_cast<float*>(t.data) + first_row * t.stride[0], t.stride[0], t.stride[1]};
}

GradStore store_of(const Call& c) {
  if (c.accumulate) return GradStore::kAddF32;
  return c.config.weight_grad == WeightGrad::kF32 ? GradStore::kF32 : GradStore::kBf16;
}

/// The caller's tensors as one rank sees them.
void bind_tensors(const Call& c, const RankPlan& p, cpu::RankLaunch* r) {
  const int64_t token{p.first_token};
  const int64_t expert{p.plan.dims.first_expert()};
  const WeightTensors& w{c.weights};
  r->clamp = c.clamp;
  r->x = rows_of(c.x, token);
  r->dy = rows_of(c.dy, token);
  r->topk_weights = scalars_of(c.topk_weights, token);
  r->weights = {rows_of(w.gate, expert),
                rows_of(w.up, expert),
                rows_of(w.down, expert),
                rows_of(w.shared_gate, 0),
                rows_of(w.shared_up, 0),
                rows_of(w.shared_down, 0),
                static_cast<const Bf16*>(c.score ? w.shared_score.data : nullptr)};
  if (c.y.given()) {
    r->y = static_cast<Bf16*>(c.y.data) + token * c.y.stride[0];
    r->y_row = c.y.stride[0];
  }
  r->dtopk_weights = scalars_of(c.dtopk_weights, token);
  r->grads = {grad_of(c.grads.gate, expert),    grad_of(c.grads.up, expert),
              grad_of(c.grads.down, expert),    grad_of(c.grads.shared_gate, 0),
              grad_of(c.grads.shared_up, 0),    grad_of(c.grads.shared_down, 0),
              grad_of(c.grads.shared_score, 0), store_of(c)};
  r->saved = static_cast<std::byte*>(c.saved.data) + p.saved_offset;
  r->saved_layout = p.saved;
}

/// Memory of all ranks for these plans, and every rank's view of it.
std::vector<cpu::RankLaunch> bind_memory(Group::Impl& g, const std::vector<RankPlan>& plans,
                                         uint32_t epoch) {
  const uint8_t fill{g.hooks.fill};
  std::vector<cpu::RankLaunch> out(plans.size());
  std::vector<Layout> layouts;
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
    r.counters = g.counters[i].begin_launch(epoch, r.counter_layout.words);
    for (size_t peer{0}; peer < plans.size(); ++peer) {
      r.heaps.push_back(g.heaps.view(static_cast<int32_t>(peer)));
    }
    r.chain_counters =
        out[0].counters + out[0].counter_layout.at[static_cast<int32_t>(Counter::kSharedChain)];
    r.chain = out[0].region<float>(Region::kChain);
  }
  return out;
}

/// At entry a launch tells every peer who it is.
void write_launch_words(const std::vector<cpu::RankLaunch>& ranks, int32_t absent) {
  for (const cpu::RankLaunch& r : ranks) {
    const Plan& p{r.plan};
    if (p.dims.rank == absent) continue;
    const LaunchWord word{p.epoch, p.backward ? 2U : 1U, p.tables.header->hash,
                          static_cast<uint32_t>(p.dims.hidden * 31 + p.dims.top_k * 7 +
                                                p.dims.experts + (p.knobs.save_x ? 1 : 0))};
    for (const HeapView& h : r.heaps) h.words[p.dims.rank] = word;
  }
}

class CpuBackend final : public Backend {
 public:
  [[nodiscard]] const char* name() const override { return "cpu"; }
  [[nodiscard]] Arch arch() const override { return Arch::kCpu; }
  [[nodiscard]] bool serves(const Device& device) const override {
    return device.kind == DeviceKind::kCpu;
  }

  void schedule(Group::Impl& g, const Tensor& ids, const Schedule& out) override {
    std::vector<Dims> dims;
    std::vector<int32_t*> words;
    for (const RankTables& t : rank_tables(g, out)) {
      dims.push_back(t.dims);
      words.push_back(t.words);
    }
    cpu::build_tables(dims, g.tile,
                      {ids.data, ids.dtype == DType::kI64, ids.stride[0], ids.stride[1]}, words);
  }

  std::optional<Fault> run(Group::Impl& g, const Call& call) override {
    const std::vector<RankPlan> plans{make_plans(g, call, Arch::kCpu)};
    const uint32_t epoch{++g.epoch};
    std::vector<cpu::RankLaunch> ranks{bind_memory(g, plans, epoch)};
    for (size_t i{0}; i < ranks.size(); ++i) bind_tensors(call, plans[i], &ranks[i]);
    write_launch_words(ranks, g.hooks.absent_rank);
    const TestHooks& h{g.hooks};
    const cpu::RunResult result{
        cpu::run(ranks, {h.order, h.seed, plans[0].plan.knobs.workers, g.timeout_s, h.absent_rank,
                         h.held_rank, h.held_at})};
    g.hooks.tasks_done = result.tasks_done;
    return result.fault;
  }
};

}  // namespace

Backend& cpu_backend() {
  static CpuBackend backend;
  return backend;
}

}  // namespace monomoe
