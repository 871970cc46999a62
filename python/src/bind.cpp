// The binding: one public call each, no logic. DLPack in (apache-tvm-ffi), monomoe::Tensor out.
//
// What is not a tensor crosses as integers: a group as its id, Config as eight integers in the
// order of `read_config`, Shape as seven in the order of `read_shape`. An option that was not given
// is kNotGiven; a tensor that was not given is None. Functions named testing_* bind
// runtime/testing.h.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "monomoe/monomoe.h"
#include "runtime/testing.h"

namespace monomoe::bind {
namespace {

namespace ffi = tvm::ffi;

constexpr int64_t kNotGiven{std::numeric_limits<int64_t>::min()};

// ---------------------------------------------------------------------------------- conversions

DType read_dtype(DLDataType t) {
  if (t.lanes != 1) return DType::kOther;
  struct Row {
    uint8_t code, bits;
    DType dtype;
  };
  static constexpr Row kRows[]{
      {kDLBfloat, 16, DType::kBf16}, {kDLFloat, 32, DType::kF32}, {kDLInt, 32, DType::kI32},
      {kDLInt, 64, DType::kI64},     {kDLUInt, 8, DType::kU8},    {kDLFloat, 16, DType::kF16},
      {kDLFloat, 64, DType::kF64},   {kDLInt, 16, DType::kI16},   {kDLInt, 8, DType::kI8},
      {kDLBool, 8, DType::kBool},
  };
  for (const Row& row : kRows) {
    if (row.code == t.code && row.bits == t.bits) return row.dtype;
  }
  return DType::kOther;
}

Device read_device(DLDevice d) {
  if (d.device_type == kDLCPU) return {DeviceKind::kCpu, d.device_id};
  if (d.device_type == kDLCUDA) return {DeviceKind::kCuda, d.device_id};
  return {DeviceKind::kOther, d.device_id};
}

// The caller (functional.py) refuses more than kMaxDims dimensions, by name.
Tensor read_tensor(const ffi::Optional<ffi::TensorView>& given) {
  Tensor t;
  if (!given.has_value()) return t;
  const ffi::TensorView view{given.value()};
  if (view.ndim() > Tensor::kMaxDims) {
    throw Error{ErrorCode::kValue, "tensor: at most 4 dimensions wanted, " +
                                       std::to_string(view.ndim()) + " given; reshape it"};
  }
  t.ndim = view.ndim();
  for (int32_t i{0}; i < t.ndim; ++i) {
    t.shape[static_cast<size_t>(i)] = view.size(i);
    t.stride[static_cast<size_t>(i)] = view.stride(i);
  }
  t.dtype = read_dtype(view.dtype());
  t.device = read_device(view.device());
  t.data = view.data_ptr();
  if (t.data != nullptr) t.data = static_cast<char*>(t.data) + view.byte_offset();
  return t;
}

std::optional<int64_t> read_option(int64_t value) {
  return value == kNotGiven ? std::nullopt : std::optional<int64_t>{value};
}

Config read_config(const ffi::Shape& v) {
  return {.fwd_comm_sms = read_option(v.at(0)),
          .bwd_comm_sms = read_option(v.at(1)),
          .workers = read_option(v.at(2)),
          .minibatch_rows = read_option(v.at(3)),
          .ring_rows = read_option(v.at(4)),
          .save_rows = read_option(v.at(5)),
          .save = static_cast<Save>(v.at(6)),
          .weight_grad = static_cast<WeightGrad>(v.at(7))};
}

Shape read_shape(const ffi::Shape& v) {
  return {.tokens = v.at(0),
          .hidden = v.at(1),
          .intermediate = v.at(2),
          .experts = v.at(3),
          .top_k = v.at(4),
          .shared = v.at(5),
          .ranks = v.at(6)};
}

// cudaStream_t that the caller made current on the tensor's device; tvm-ffi took it from torch.
void* stream_of(const Tensor& t) {
  if (!t.given() || t.device.kind != DeviceKind::kCuda) return nullptr;
  return TVMFFIEnvGetStream(kDLCUDA, t.device.index);
}

/// Reads the arguments of one call, in the order they were given.
class Arguments {
 public:
  Arguments(const TVMFFIAny* args, int32_t num_args)
      : next_{reinterpret_cast<const ffi::AnyView*>(args)}, left_{num_args} {}

  template <class T>
  T take() {
    if (left_ == 0) {
      throw Error{ErrorCode::kType,
                  "call: more arguments wanted, fewer given; install the package and its library "
                  "from one source"};
    }
    --left_;
    return (next_++)->cast<T>();
  }

  Tensor tensor() { return read_tensor(take<ffi::Optional<ffi::TensorView>>()); }

  WeightTensors weights() {
    WeightTensors w;
    for (Tensor* t :
         {&w.gate, &w.up, &w.down, &w.shared_gate, &w.shared_up, &w.shared_down, &w.shared_score}) {
      *t = tensor();
    }
    return w;
  }

  Schedule schedule() {
    Schedule s;
    s.tables = tensor();
    s.experts = take<int64_t>();
    s.top_k = take<int64_t>();
    const auto tokens = take<ffi::Shape>();
    s.tokens_per_rank.assign(tokens.begin(), tokens.end());
    return s;
  }

  std::optional<double> number() {
    const auto value = take<ffi::Optional<double>>();
    return value.has_value() ? std::optional<double>{value.value()} : std::nullopt;
  }

  Config config() { return read_config(take<ffi::Shape>()); }
  std::shared_ptr<Group> group() { return Group::find(take<int64_t>()); }

 private:
  const ffi::AnyView* next_;
  int32_t left_;
};

const char* python_type(ErrorCode code) {
  switch (code) {
    case ErrorCode::kValue:
      return "ValueError";
    case ErrorCode::kType:
      return "TypeError";
    case ErrorCode::kState:
    case ErrorCode::kFault:
    case ErrorCode::kBackend:
      return "RuntimeError";
  }
  return "RuntimeError";
}

// The body of every exported function: arguments in, exceptions translated.
template <class Call>
int run(const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result, Call call) {
  TVM_FFI_SAFE_CALL_BEGIN();
  Arguments in{args, num_args};
  try {
    *reinterpret_cast<ffi::Any*>(result) = call(in);
  } catch (const Error& e) {
    throw ffi::Error{python_type(e.code()), e.what(), ""};
  }
  TVM_FFI_SAFE_CALL_END();
}

// The groups that Python holds; `Group::find` only looks them up.
class Owners {
 public:
  void add(const std::shared_ptr<Group>& group) {
    const std::lock_guard lock{mutex_};
    groups_[group->id()] = group;
  }

  // Null if the id was never added or is closed already.
  std::shared_ptr<Group> take(int64_t id) {
    const std::lock_guard lock{mutex_};
    const auto it = groups_.find(id);
    if (it == groups_.end()) return nullptr;
    auto group = std::move(it->second);
    groups_.erase(it);
    return group;
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<Group>> groups_;
};

Owners& owners() {
  static Owners instance;
  return instance;
}

}  // namespace
}  // namespace monomoe::bind

// MONOMOE_EXPORT(name) { body }: `in` are the arguments, the body returns an ffi::Any.
#define MONOMOE_EXPORT(name)                                                                      \
  namespace monomoe::bind {                                                                       \
  static ffi::Any call_##name(Arguments& in);                                                     \
  }                                                                                               \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##name(void*, const TVMFFIAny* args, int32_t count, \
                                                     TVMFFIAny* result) {                         \
    return monomoe::bind::run(args, count, result, monomoe::bind::call_##name);                   \
  }                                                                                               \
  tvm::ffi::Any monomoe::bind::call_##name([[maybe_unused]] Arguments& in)

// ------------------------------------------------------------------------------------- group.h

MONOMOE_EXPORT(version) { return ffi::String{MONOMOE_VERSION}; }

// (ranks, timeout_s) -> id
MONOMOE_EXPORT(group_local) {
  const auto ranks = in.take<int64_t>();
  const auto group = Group::local(ranks, {.timeout_s = in.take<double>()});
  owners().add(group);
  return group->id();
}

MONOMOE_EXPORT(group_ranks) { return in.group()->ranks(); }

MONOMOE_EXPORT(group_check) {
  in.group()->check();
  return nullptr;
}

MONOMOE_EXPORT(group_close) {
  if (const auto group = owners().take(in.take<int64_t>())) group->close();
  return nullptr;
}

// ------------------------------------------------------------------------------------- layer.h

// (tokens, ranks) -> tokens of each rank
MONOMOE_EXPORT(split_tokens) {
  const auto tokens = in.take<int64_t>();
  return ffi::Shape{split_tokens(tokens, in.take<int64_t>())};
}

// (group, tokens, experts, top_k) -> int32 elements
MONOMOE_EXPORT(schedule_words) {
  const auto group = in.group();
  const auto tokens = in.take<int64_t>();
  const auto experts = in.take<int64_t>();
  return schedule_words(*group, tokens, experts, in.take<int64_t>());
}

// (group, topk_ids, schedule...)
MONOMOE_EXPORT(schedule) {
  const auto group = in.group();
  const auto topk_ids = in.tensor();
  const auto out = in.schedule();
  schedule(*group, topk_ids, out, stream_of(topk_ids));
  return nullptr;
}

// (group, shape, config) -> bytes
MONOMOE_EXPORT(saved_bytes) {
  const auto group = in.group();
  const auto shape = read_shape(in.take<ffi::Shape>());
  return saved_bytes(*group, shape, in.config());
}

// (group, x, topk_weights, weights..., schedule..., config, swiglu_limit, y, saved)
MONOMOE_EXPORT(forward) {
  const auto group = in.group();
  ForwardArgs a;
  a.x = in.tensor();
  a.topk_weights = in.tensor();
  a.weights = in.weights();
  a.schedule = in.schedule();
  a.config = in.config();
  a.swiglu_limit = in.number();
  a.y = in.tensor();
  a.saved = in.tensor();
  a.stream = stream_of(a.x);
  forward(*group, a);
  return nullptr;
}

// (group, dy, x, topk_weights, weights..., schedule..., config, swiglu_limit, saved, dx,
//  dtopk_weights, grads..., accumulate)
MONOMOE_EXPORT(backward) {
  const auto group = in.group();
  BackwardArgs a;
  a.dy = in.tensor();
  a.x = in.tensor();
  a.topk_weights = in.tensor();
  a.weights = in.weights();
  a.schedule = in.schedule();
  a.config = in.config();
  a.swiglu_limit = in.number();
  a.saved = in.tensor();
  a.dx = in.tensor();
  a.dtopk_weights = in.tensor();
  a.grads = in.weights();
  a.accumulate = in.take<bool>();
  a.stream = stream_of(a.dy);
  backward(*group, a);
  return nullptr;
}

// (shape, config) -> text
MONOMOE_EXPORT(explain) {
  const auto shape = read_shape(in.take<ffi::Shape>());
  return ffi::String{explain(shape, in.config())};
}

// (topk_ids, shape, config, backward, rank, tickets, score, backend) -> JSON
MONOMOE_EXPORT(describe) {
  const auto topk_ids = in.tensor();
  const auto shape = read_shape(in.take<ffi::Shape>());
  const Config config{in.config()};
  PlanView view;
  view.backward = in.take<bool>();
  view.rank = in.take<int64_t>();
  view.tickets = in.take<int64_t>();
  view.score = in.take<bool>();
  view.backend = std::string{in.take<ffi::String>()};
  return ffi::String{describe(topk_ids, shape, config, view)};
}

MONOMOE_EXPORT(backends) {
  ffi::Array<ffi::String> names;
  for (const std::string& name : backends()) names.push_back(name);
  return names;
}

// -> name, value, name, value, ...
MONOMOE_EXPORT(environment) {
  ffi::Array<ffi::String> all;
  for (const auto& [name, value] : environment()) {
    all.push_back(name);
    all.push_back(value);
  }
  return all;
}

// ----------------------------------------------------------------------------------- testing.h

MONOMOE_EXPORT(testing_set_executor) {
  const auto group = in.group();
  const auto order = static_cast<testing::Order>(in.take<int64_t>());
  testing::set_executor(*group, order, static_cast<uint64_t>(in.take<int64_t>()));
  return nullptr;
}

MONOMOE_EXPORT(testing_set_tile) {
  const auto group = in.group();
  const auto rows = in.take<int32_t>();
  const auto cols = in.take<int32_t>();
  testing::set_tile(*group, rows, cols, in.take<int32_t>());
  return nullptr;
}

MONOMOE_EXPORT(testing_poison) {
  const auto group = in.group();
  testing::poison(*group, static_cast<uint8_t>(in.take<int64_t>()));
  return nullptr;
}

MONOMOE_EXPORT(testing_set_epoch) {
  const auto group = in.group();
  const auto epoch = static_cast<uint32_t>(in.take<int64_t>());
  testing::set_epoch(*group, epoch, in.take<bool>());
  return nullptr;
}

MONOMOE_EXPORT(testing_never_start) {
  const auto group = in.group();
  testing::never_start(*group, in.take<int64_t>());
  return nullptr;
}

MONOMOE_EXPORT(testing_start_late) {
  const auto group = in.group();
  const auto rank = in.take<int64_t>();
  testing::start_late(*group, rank, in.take<double>());
  return nullptr;
}

MONOMOE_EXPORT(testing_falsify) {
  const auto group = in.group();
  const auto rank = in.take<int64_t>();
  testing::falsify(*group, rank, static_cast<uint32_t>(in.take<int64_t>()));
  return nullptr;
}

MONOMOE_EXPORT(testing_pause) {
  const auto group = in.group();
  const auto rank = in.take<int64_t>();
  const auto at = static_cast<testing::PauseAt>(in.take<int64_t>());
  testing::pause(*group, rank, at, static_cast<uint32_t>(in.take<int64_t>()));
  return nullptr;
}

MONOMOE_EXPORT(testing_hold) {
  const auto group = in.group();
  const auto rank = in.take<int64_t>();
  testing::hold(*group, rank, in.take<int64_t>());
  return nullptr;
}

MONOMOE_EXPORT(testing_tasks_done) {
  const auto group = in.group();
  return testing::tasks_done(*group, in.take<int64_t>());
}

MONOMOE_EXPORT(testing_role_clocks) {
  const auto group = in.group();
  std::vector<int64_t> out;
  for (const uint64_t cycles : testing::role_clocks(*group)) {
    out.push_back(static_cast<int64_t>(cycles));
  }
  return ffi::Shape{out};
}
