#include "runtime/validate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "plan/routing.h"
#include "plan/shape.h"
#include "runtime/backend.h"
#include "runtime/overlap.h"
#include "runtime/planner.h"

namespace monomoe {
namespace {

std::string text(int64_t v) { return std::to_string(v); }
std::string text(double v) {
  std::string s{std::to_string(v)};
  while (s.size() > 1 && s.back() == '0' && s[s.size() - 2] != '.') s.pop_back();
  return s;
}

const char* text(DType d) {
  switch (d) {
    case DType::kBf16:
      return "bfloat16";
    case DType::kF32:
      return "float32";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
    case DType::kU8:
      return "uint8";
    case DType::kF16:
      return "float16";
    case DType::kF64:
      return "float64";
    case DType::kI16:
      return "int16";
    case DType::kI8:
      return "int8";
    case DType::kBool:
      return "bool";
    case DType::kOther:
      break;
  }
  return "another dtype";
}

std::string text(const Device& d) {
  if (d.kind == DeviceKind::kCpu) return d.index == 0 ? "cpu" : "cpu:" + text(int64_t{d.index});
  if (d.kind == DeviceKind::kCuda) return "cuda:" + text(int64_t{d.index});
  return "another device";
}

std::string served_devices() {
  return is_served({DeviceKind::kCuda, 0}) ? "cpu or a Hopper GPU" : "cpu";
}

std::string text(const int64_t* dims, int32_t n) {
  std::string s{"["};
  for (int32_t i{0}; i < n; ++i) s += (i > 0 ? ", " : "") + text(dims[i]);
  return s + "]";
}
std::string shape_text(const Tensor& t) { return text(t.shape.data(), t.ndim); }

[[noreturn]] void refuse(ErrorCode code, const std::string& subject, const std::string& wanted,
                         const std::string& given, const std::string& remedy) {
  throw Error{code, subject + ": " + wanted + " wanted, " + given + "; " + remedy};
}

[[noreturn]] void refuse_value(const std::string& subject, const std::string& wanted,
                               const std::string& given, const std::string& remedy) {
  refuse(ErrorCode::kValue, subject, wanted, given + " given", remedy);
}

void check_range(const char* subject, int64_t v, int64_t lowest, int64_t highest,
                 const char* remedy) {
  if (v >= lowest && v <= highest) return;
  refuse_value(subject, "a value in [" + text(lowest) + ", " + text(highest) + "]", text(v),
               remedy);
}

void check_option(const char* subject, const std::optional<int64_t>& v, int64_t lowest,
                  int64_t highest, const char* remedy) {
  if (v) check_range(subject, *v, lowest, highest, remedy);
}

void check_width(const char* subject, int64_t v) {
  if (v >= 8 && v % 8 == 0 && v <= kMaxWidth) return;
  refuse_value(subject, "a multiple of 8 in [8, " + text(kMaxWidth) + "]", text(v),
               "pad the weights, so that rows are 16 bytes");
}

void check_given(const Tensor& t, const char* name) {
  if (!t.given()) refuse_value(name, "a tensor", "nothing", "pass it");
  if (t.data == nullptr && t.numel() > 0) {
    refuse_value(name, "memory behind the tensor", "a null pointer", "pass the tensor's data");
  }
}

void check_alignment(const Tensor& t, const char* name, int64_t bytes) {
  if (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) == 0) return;
  refuse_value(name, "elements at " + text(bytes) + "-byte aligned addresses",
               "a misaligned first element", "pass .clone()");
}

/// Outputs only: no two elements share memory.
void check_no_overlap(const Tensor& t, const char* name) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, extent
  for (size_t i{0}; i < static_cast<size_t>(t.ndim); ++i) {
    if (t.shape[i] > 1) dims.emplace_back(t.stride[i], t.shape[i]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t span{1};
  for (const auto& [stride, extent] : dims) {
    if (stride < span) {
      refuse_value(name, "elements that do not overlap", "strides " + text(t.stride.data(), t.ndim),
                   "pass a tensor of its own");
    }
    span = stride * extent;
  }
}

struct Named {
  const Tensor* tensor;
  std::string name;
};

/// What a call only reads.
std::vector<Named> inputs_of(const Call& c) {
  const WeightTensors& w{c.weights};
  std::vector<Named> all{{&c.x, "x"},
                         {&c.topk_weights, "topk_weights"},
                         {&c.schedule.tables, "schedule.tables"},
                         {&w.gate, "weights.gate"},
                         {&w.up, "weights.up"},
                         {&w.down, "weights.down"},
                         {&w.shared_gate, "weights.shared_gate"},
                         {&w.shared_up, "weights.shared_up"},
                         {&w.shared_down, "weights.shared_down"},
                         {&w.shared_score, "weights.shared_score"}};
  if (c.backward) all.insert(all.end(), {{&c.dy, "dy"}, {&c.saved, "saved"}});
  return all;
}

Footprint footprint_of(const Tensor& t) {
  const bool wide{t.dtype == DType::kF32 || t.dtype == DType::kI32};
  return Footprint::of(t, t.dtype == DType::kU8 ? 1 : (wide ? 4 : 2));
}

bool same_start(const Tensor& a, const Tensor& b) { return a.data == b.data; }

/// Some element of one lies in the other. (Interleaved views of one tensor are legal.)
bool overlap(const Tensor& a, const Tensor& b) {
  return share_memory(footprint_of(a), footprint_of(b));
}

/// No output may be another tensor of the call.
void check_distinct(const std::vector<Named>& outputs, const std::vector<Named>& others) {
  const auto has_memory = [](const Named& n) { return n.tensor->given() && n.tensor->numel() > 0; };
  // Equal tensors first: they are the likelier mistake, and may overlap further ones by their size.
  for (const auto& meet : {same_start, overlap}) {
    for (auto a = outputs.begin(); a != outputs.end(); ++a) {
      const auto check = [&](const Named& b) {
        if (has_memory(*a) && has_memory(b) && meet(*a->tensor, *b.tensor)) {
          refuse_value(a->name, "memory of its own", "the memory of " + b.name,
                       "pass a new tensor");
        }
      };
      std::for_each(a + 1, outputs.end(), check);
      std::for_each(others.begin(), others.end(), check);
    }
  }
}

void check_device(const Tensor& t, const char* name, const Device& device) {
  if (!is_served(t.device)) {
    refuse(ErrorCode::kType, name, "a tensor on " + served_devices(), text(t.device) + " given",
           why_not_served(t.device) + "; `python -m monomoe doctor` says more");
  }
  if (t.device == device) return;
  refuse(ErrorCode::kType, name, "a tensor on " + text(device), text(t.device) + " given",
         "move all tensors of a call to one device");
}

void check_dtype(const Tensor& t, const char* name, DType dtype) {
  if (t.dtype == dtype) return;
  refuse(ErrorCode::kType, name, text(dtype), std::string{text(t.dtype)} + " given",
         std::string{"convert it with .to(torch."} + text(dtype) + ")");
}

void check_shape_is(const Tensor& t, const char* name, std::initializer_list<int64_t> shape,
                    const char* letters) {
  bool same{t.ndim == static_cast<int32_t>(shape.size())};
  for (size_t i{0}; same && i < shape.size(); ++i) same = t.shape[i] == shape.begin()[i];
  if (same) return;
  refuse_value(name,
               std::string{"shape "} + letters + " = " +
                   text(shape.begin(), static_cast<int32_t>(shape.size())),
               t.ndim < 0 ? "nothing" : shape_text(t), "check the tensor and its dimensions");
}

/// Rows of 16-byte aligned memory, last dimension contiguous, rows not overlapping.
void check_rows(const Tensor& t, const char* name) {
  if (t.numel() == 0) return;
  const auto last = static_cast<size_t>(t.ndim - 1);
  const int64_t width{t.shape[last]};
  const int64_t item{t.dtype == DType::kF32 ? 4 : 2};
  if (width > 1 && t.stride[last] != 1) {
    refuse_value(name, "a contiguous last dimension", "strides " + text(t.stride.data(), t.ndim),
                 "pass .contiguous()");
  }
  if (reinterpret_cast<uintptr_t>(t.data) % 16 != 0) {
    refuse_value(name, "rows at 16-byte aligned addresses", "a misaligned first element",
                 "pass .clone() or a view that starts at a multiple of 8 elements");
  }
  for (size_t i{0}; i < last; ++i) {
    if (t.shape[i] <= 1) continue;
    if (t.stride[i] * item % 16 != 0) {
      refuse_value(name, "rows at 16-byte aligned addresses",
                   "strides " + text(t.stride.data(), t.ndim),
                   "pass .contiguous() or pad the rows to a multiple of 8 elements");
    }
    if (t.stride[i] < width) {
      refuse_value(name, "rows that do not overlap", "strides " + text(t.stride.data(), t.ndim),
                   "pass .contiguous()");
    }
  }
}

void check_bf16(const Tensor& t, const char* name, std::initializer_list<int64_t> shape,
                const char* letters, const Device& device) {
  check_given(t, name);
  check_device(t, name, device);
  check_dtype(t, name, DType::kBf16);
  check_shape_is(t, name, shape, letters);
  check_rows(t, name);
}

void check_f32_scalars(const Tensor& t, const char* name, int64_t tokens, int64_t top_k,
                       const Device& device) {
  check_given(t, name);
  check_device(t, name, device);
  check_dtype(t, name, DType::kF32);
  check_shape_is(t, name, {tokens, top_k}, "[T, K]");
  check_alignment(t, name, 4);
}

void check_token_counts(const std::vector<int64_t>& counts, int64_t ranks, int64_t tokens) {
  const auto size = static_cast<int64_t>(counts.size());
  if (size != ranks) {
    refuse_value("tokens_per_rank", text(ranks) + " counts, one a rank", text(size),
                 "pass one count for each rank of the group");
  }
  for (const int64_t c : counts) {
    check_range("tokens_per_rank", c, 0, kMaxRows, "a rank without tokens has 0");
  }
  const int64_t sum{std::accumulate(counts.begin(), counts.end(), int64_t{0})};
  if (sum != tokens) {
    refuse_value("tokens_per_rank", "counts that add up to T = " + text(tokens), text(sum),
                 "pass the token counts of this call");
  }
}

void check_routing_size(int64_t tokens, int64_t top_k, int64_t experts) {
  check_range("experts", experts, 1, kMaxExperts, "pass the number of experts of all ranks");
  if (top_k < 1 || top_k > experts) {
    refuse_value("top_k", "1 <= K <= E = " + text(experts), text(top_k),
                 "a token can't have more routes than there are experts");
  }
  if (tokens > kMaxRows / top_k - experts) {
    refuse_value("topk_ids", "at most 2^30 routes", text(tokens) + " tokens of " + text(top_k),
                 "split the batch");
  }
}

void check_tables(const Tensor& t, int64_t words, const Device& device) {
  check_given(t, "schedule.tables");
  check_device(t, "schedule.tables", device);
  check_dtype(t, "schedule.tables", DType::kI32);
  if (t.ndim == 1 && t.shape[0] == words && (words < 2 || t.stride[0] == 1) &&
      reinterpret_cast<uintptr_t>(t.data) % 8 == 0) {
    return;
  }
  refuse_value("schedule.tables", "contiguous [" + text(words) + "]", shape_text(t),
               "make the schedule with this group, T, E and K");
}

void check_ids(const Tensor& ids, int64_t experts) {
  for (int64_t t{0}; t < ids.shape[0]; ++t) {
    for (int64_t k{0}; k < ids.shape[1]; ++k) {
      const int64_t at{t * ids.stride[0] + k * ids.stride[1]};
      const int64_t e{ids.dtype == DType::kI64 ? static_cast<const int64_t*>(ids.data)[at]
                                               : static_cast<const int32_t*>(ids.data)[at]};
      if (e >= -1 && e < experts) continue;
      refuse(ErrorCode::kValue, "topk_ids", "values in [-1, " + text(experts) + ")",
             text(e) + " found at [" + text(t) + ", " + text(k) + "]",
             "fix the router or pass another number of experts; -1 means not routed");
    }
  }
}

/// Do the tables come from a schedule of these sizes?
void check_schedule_fits(const Group::Impl& group, const Schedule& s, int64_t tokens,
                         const Device& device) {
  check_routing_size(tokens, s.top_k, s.experts);
  check_token_counts(s.tokens_per_rank, group.ranks, tokens);
  check_tables(s.tables, schedule_words(group, tokens, s.experts, s.top_k), device);
  if (device.kind != DeviceKind::kCpu) return;  // not for the host to read
  const std::vector<RankTables> tables{rank_tables(group, s)};
  for (const RankTables& t : tables) {
    const TableHeader& h{*t.tables.header};
    if (h.magic == TableHeader::kMagic && h.ranks == group.ranks && h.rank == t.dims.rank &&
        h.experts == s.experts && h.top_k == s.top_k && h.tokens == t.dims.tokens &&
        h.tile_rows == group.tile.rows && h.sum_tokens == group.tile.sum_tokens) {
      continue;
    }
    refuse(ErrorCode::kState, "schedule", "tables of this group, T, E, K and token split",
           "tables of another call given", "call schedule with this group and these ids");
  }
}

void check_weights(const Call& c, const Device& device) {
  const int64_t e{c.schedule.experts};
  const int64_t h{c.hidden};
  const int64_t i{c.inter};
  check_bf16(c.weights.gate, "weights.gate", {e, i, h}, "[E, I, H]", device);
  check_bf16(c.weights.up, "weights.up", {e, i, h}, "[E, I, H]", device);
  check_bf16(c.weights.down, "weights.down", {e, h, i}, "[E, H, I]", device);
  if (c.shared == 0) {
    const bool some{c.weights.shared_up.given() || c.weights.shared_down.given() ||
                    c.weights.shared_score.given()};
    if (some) {
      refuse_value("weights.shared_gate", "all shared tensors or none", "nothing",
                   "pass shared_gate, shared_up and shared_down together");
    }
    return;
  }
  const int64_t s{c.shared};
  check_bf16(c.weights.shared_gate, "weights.shared_gate", {s, h}, "[Is, H]", device);
  check_bf16(c.weights.shared_up, "weights.shared_up", {s, h}, "[Is, H]", device);
  check_bf16(c.weights.shared_down, "weights.shared_down", {h, s}, "[H, Is]", device);
  if (c.score) check_bf16(c.weights.shared_score, "weights.shared_score", {h}, "[H]", device);
}

/// A gradient to be written: absent, or the weight's shape in the dtype that was asked for.
void check_grad(const Call& c, const Tensor& t, const std::string& name,
                std::initializer_list<int64_t> shape, const char* letters, bool exists) {
  if (!t.given()) return;
  if (!exists) {
    refuse_value(name, "nothing", "a tensor", "the layer has no such weight");
  }
  const bool wide{c.accumulate || c.config.weight_grad == WeightGrad::kF32};
  check_device(t, name.c_str(), c.x.device);
  check_dtype(t, name.c_str(), wide ? DType::kF32 : DType::kBf16);
  check_given(t, name.c_str());
  check_shape_is(t, name.c_str(), shape, letters);
  check_rows(t, name.c_str());
  check_no_overlap(t, name.c_str());
}

std::string grads_prefix(const Call& c) { return c.accumulate ? "accumulate." : "grads."; }

void check_grads(const Call& c) {
  const std::string prefix{grads_prefix(c)};
  const int64_t e{c.schedule.experts};
  const int64_t h{c.hidden};
  const int64_t i{c.inter};
  const int64_t s{c.shared};
  check_grad(c, c.grads.gate, prefix + "gate", {e, i, h}, "[E, I, H]", true);
  check_grad(c, c.grads.up, prefix + "up", {e, i, h}, "[E, I, H]", true);
  check_grad(c, c.grads.down, prefix + "down", {e, h, i}, "[E, H, I]", true);
  check_grad(c, c.grads.shared_gate, prefix + "shared_gate", {s, h}, "[Is, H]", s > 0);
  check_grad(c, c.grads.shared_up, prefix + "shared_up", {s, h}, "[Is, H]", s > 0);
  check_grad(c, c.grads.shared_down, prefix + "shared_down", {h, s}, "[H, Is]", s > 0);
  check_grad(c, c.grads.shared_score, prefix + "shared_score", {h}, "[H]", c.score);
  if (c.grads.gate.given() != c.grads.up.given()) {
    refuse_value(prefix + "up", "gate and up together or neither", "one of them",
                 "they come from one product");
  }
  if (c.grads.shared_gate.given() != c.grads.shared_up.given()) {
    refuse_value(prefix + "shared_up", "shared_gate and shared_up together or neither",
                 "one of them", "they come from one product");
  }
}

/// What forward and backward check alike; fills the sizes of `c`.
void check_common(const Group::Impl& group, std::optional<double> limit, Call* c) {
  check_config(c->config);
  check_given(c->x, "x");
  check_device(c->x, "x", c->x.device);
  check_dtype(c->x, "x", DType::kBf16);
  if (c->x.ndim != 2) {
    refuse_value("x", "shape [T, H]", shape_text(c->x), "flatten it to two dimensions");
  }
  check_given(c->weights.gate, "weights.gate");
  if (c->weights.gate.ndim != 3) {
    refuse_value("weights.gate", "shape [E, I, H]", shape_text(c->weights.gate),
                 "stack the experts along the first dimension");
  }
  c->tokens = c->x.shape[0];
  c->hidden = c->x.shape[1];
  c->inter = c->weights.gate.shape[1];
  if (c->weights.shared_gate.given()) {
    if (c->weights.shared_gate.ndim != 2) {
      refuse_value("weights.shared_gate", "shape [Is, H]", shape_text(c->weights.shared_gate),
                   "pass a matrix");
    }
    c->shared = c->weights.shared_gate.shape[0];
    check_width("shared width Is", c->shared);
    c->score = c->weights.shared_score.given();
  }
  check_width("hidden width H", c->hidden);
  check_width("intermediate width I", c->inter);
  check_rows(c->x, "x");
  check_schedule_fits(group, c->schedule, c->tokens, c->x.device);
  check_weights(*c, c->x.device);
  check_f32_scalars(c->topk_weights, "topk_weights", c->tokens, c->schedule.top_k, c->x.device);
  c->clamp.limit = std::numeric_limits<float>::infinity();
  if (limit) {
    const auto rounded = static_cast<float>(std::min(*limit, 1e39));  // inf and NaN stay
    if (!(rounded > 0) || !std::isfinite(rounded)) {
      refuse_value("swiglu_limit", "a finite value > 0", text(*limit), "pass None for no clamp");
    }
    c->clamp.limit = static_cast<float>(*limit);
  }
}

}  // namespace

void refuse_closed_group() {
  refuse(ErrorCode::kState, "group", "an open group", "a closed one given",
         "make a new group and a new schedule");
}

void check_group(int64_t ranks, double timeout_s) {
  check_range("ranks", ranks, 1, kMaxRanks, "pass the number of ranks");
  if (timeout_s > 0 && std::isfinite(timeout_s)) return;
  refuse_value("timeout_s", "a finite value > 0", text(timeout_s), "the default is 600");
}

void refuse_memory(const std::vector<RankPlan>& plans) {
  int64_t bytes{0};
  for (const RankPlan& p : plans) {
    const Layout l{workspace_layout(p.facts)};
    bytes += l.heap_bytes + l.local_bytes;
  }
  if (bytes == 0) {
    refuse(ErrorCode::kBackend, "memory", "a few kilobytes to plan a call", "less left",
           "free some");
  }
  refuse(ErrorCode::kBackend, "memory", text(bytes) + " bytes of workspace", "less left",
         "split the batch or pass a smaller ring_rows");
}

void check_tickets(int64_t tickets) {
  if (tickets <= kMaxTickets) return;
  refuse_value("shape", "at most 2^30 tasks on a rank", text(tickets),
               "split the batch or use more ranks");
}

void check_config(const Config& c) {
  constexpr int64_t kMost{int64_t{1} << 31};
  check_option("fwd_comm_sms", c.fwd_comm_sms, 0, 1 << 16,
               "0 leaves all moving to compute workers");
  check_option("bwd_comm_sms", c.bwd_comm_sms, 0, 1 << 16,
               "0 leaves all moving to compute workers");
  check_option("workers", c.workers, 1, 1 << 16, "None lets the policy choose");
  check_option("minibatch_rows", c.minibatch_rows, 128, kMost, "None lets the policy choose");
  check_option("ring_rows", c.ring_rows, 256, kMost, "None lets the policy choose");
  check_option("save_rows", c.save_rows, 0, kMost, "rows that do not fit are computed again");
}

void check_view(const PlanView& view, int64_t ranks) {
  constexpr int64_t kMostTickets{int64_t{1} << 20};
  check_range("rank", view.rank, 0, ranks - 1, "ranks are counted from 0");
  check_range("tickets", view.tickets, 0, kMostTickets, "pass how many of each line to list");
  if (view.backend == "cpu" || view.backend == "sm90") return;
  refuse_value("backend", "cpu or sm90", view.backend, "pass the one whose plan you want to see");
}

void check_tokens(int64_t tokens) { check_range("tokens", tokens, 0, kMaxRows, "split the batch"); }

void check_shape(const Shape& s, int64_t ranks) {
  check_tokens(s.tokens);
  check_width("hidden width H", s.hidden);
  check_width("intermediate width I", s.intermediate);
  if (s.shared != 0) check_width("shared width Is", s.shared);
  check_routing_size(s.tokens, s.top_k, s.experts);
  if (s.ranks != ranks) {
    refuse_value("ranks", text(ranks) + " as in the group", text(s.ranks), "pass the group's");
  }
}

void check_schedule(const Group::Impl& group, const Tensor& ids, const Schedule& out) {
  check_given(ids, "topk_ids");
  check_device(ids, "topk_ids", ids.device);
  if (ids.dtype != DType::kI32 && ids.dtype != DType::kI64) {
    refuse(ErrorCode::kType, "topk_ids", "int32 or int64", std::string{text(ids.dtype)} + " given",
           "convert it with .to(torch.int32)");
  }
  if (ids.ndim != 2) {
    refuse_value("topk_ids", "shape [T, K]", shape_text(ids), "one row a token");
  }
  check_alignment(ids, "topk_ids", ids.dtype == DType::kI64 ? 8 : 4);
  check_routing_size(ids.shape[0], ids.shape[1], out.experts);
  if (out.top_k != ids.shape[1]) {
    refuse_value("schedule.top_k", text(ids.shape[1]) + " as in topk_ids", text(out.top_k),
                 "pass the K of the ids");
  }
  check_token_counts(out.tokens_per_rank, group.ranks, ids.shape[0]);
  check_tables(out.tables, schedule_words(group, ids.shape[0], out.experts, out.top_k), ids.device);
  if (ids.device.kind == DeviceKind::kCpu) check_ids(ids, out.experts);
}

Call check_forward(const Group::Impl& group, const ForwardArgs& a) {
  Call c;
  c.x = a.x;
  c.topk_weights = a.topk_weights;
  c.weights = a.weights;
  c.schedule = a.schedule;
  c.config = a.config;
  c.y = a.y;
  c.saved = a.saved;
  c.stream = a.stream;
  check_common(group, a.swiglu_limit, &c);
  check_bf16(c.y, "y", {c.tokens, c.hidden}, "[T, H]", c.x.device);
  check_distinct({{&c.y, "y"}, {&c.saved, "saved"}}, inputs_of(c));
  return c;
}

Call check_backward(const Group::Impl& group, const BackwardArgs& a) {
  Call c;
  c.backward = true;
  c.x = a.x;
  c.dy = a.dy;
  c.topk_weights = a.topk_weights;
  c.weights = a.weights;
  c.schedule = a.schedule;
  c.config = a.config;
  c.y = a.dx;
  c.saved = a.saved;
  c.dtopk_weights = a.dtopk_weights;
  c.grads = a.grads;
  c.accumulate = a.accumulate;
  c.stream = a.stream;
  check_common(group, a.swiglu_limit, &c);
  check_bf16(c.dy, "dy", {c.tokens, c.hidden}, "[T, H]", c.x.device);
  if (c.y.given()) check_bf16(c.y, "dx", {c.tokens, c.hidden}, "[T, H]", c.x.device);
  if (c.dtopk_weights.given()) {
    check_f32_scalars(c.dtopk_weights, "dtopk_weights", c.tokens, c.schedule.top_k, c.x.device);
    check_no_overlap(c.dtopk_weights, "dtopk_weights");
  }
  check_grads(c);
  const WeightTensors& g{c.grads};
  const std::string prefix{grads_prefix(c)};
  check_distinct({{&c.y, "dx"},
                  {&c.dtopk_weights, "dtopk_weights"},
                  {&g.gate, prefix + "gate"},
                  {&g.up, prefix + "up"},
                  {&g.down, prefix + "down"},
                  {&g.shared_gate, prefix + "shared_gate"},
                  {&g.shared_up, prefix + "shared_up"},
                  {&g.shared_down, prefix + "shared_down"},
                  {&g.shared_score, prefix + "shared_score"}},
                 inputs_of(c));
  return c;
}

void check_saved(const Tensor& t, int64_t bytes, const Device& device) {
  check_given(t, "saved");
  check_device(t, "saved", device);
  check_dtype(t, "saved", DType::kU8);
  if (t.ndim == 1 && t.shape[0] >= bytes && (t.shape[0] < 2 || t.stride[0] == 1) &&
      reinterpret_cast<uintptr_t>(t.data) % 16 == 0) {
    return;
  }
  refuse_value("saved", "at least " + text(bytes) + " contiguous bytes, 16-byte aligned",
               shape_text(t), "allocate saved_bytes(group, shape, config) bytes");
}

}  // namespace monomoe
