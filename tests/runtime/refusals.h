// A refusal, and how a test provokes it: the call is legal but for one thing, the error says
// exactly what is wrong, and nothing was written.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/valid_call.h"

namespace monomoe::testing {

/// What an error must say: "subject: wanted wanted, given; remedy".
struct Sentence {
  ErrorCode code;
  std::string subject, wanted, given, remedy;

  [[nodiscard]] std::string text() const {
    return subject + ": " + wanted + " wanted, " + given + "; " + remedy;
  }
};

template <class F>
void expect_refusal(const F& call, const Sentence& s) {
  try {
    call();
    ADD_FAILURE() << "no error; wanted: " << s.text();
  } catch (const Error& e) {
    EXPECT_EQ(std::string{e.what()}, s.text());
    EXPECT_EQ(e.code(), s.code) << e.what();
  }
}

/// One way to spoil a call, and what the call says then.
struct Refusal {
  std::function<void(ValidCall&)> spoil;
  Sentence sentence;
};

enum Calls : uint8_t { kSchedule = 1, kForward = 2, kBackward = 4, kBoth = 6 };

/// Each refusal in turn, in each of `calls`.
inline void expect_refusals(int calls, const std::vector<Refusal>& all) {
  for (const Refusal& r : all) {
    SCOPED_TRACE(r.sentence.text());
    ValidCall v;
    if ((calls & kSchedule) == 0) v.run_schedule();
    r.spoil(v);
    const auto before = v.bytes();
    if ((calls & kSchedule) != 0) expect_refusal([&] { v.run_schedule(); }, r.sentence);
    if ((calls & kForward) != 0) expect_refusal([&] { v.run_forward(); }, r.sentence);
    if ((calls & kBackward) != 0) expect_refusal([&] { v.run_backward(); }, r.sentence);
    EXPECT_EQ(v.bytes(), before) << "a refused call has written something";
  }
}

inline std::string text(const std::array<int64_t, Tensor::kMaxDims>& dims, int32_t n) {
  std::string s{"["};
  for (int32_t i{0}; i < n; ++i) {
    s += (i > 0 ? ", " : "") + std::to_string(dims[static_cast<size_t>(i)]);
  }
  return s + "]";
}

/// A device that no backend serves, whatever this machine has, and what is said about it.
constexpr Device kNowhere{DeviceKind::kOther, 0};

inline Sentence no_backend(const std::string& name) {
  const bool has_gpu{backends().size() > 1};
  return {ErrorCode::kType, name,
          std::string{"a tensor on cpu"} + (has_gpu ? " or a Hopper GPU" : ""),
          "another device given",
          "no backend serves that device here; `python -m monomoe doctor` says more"};
}

inline void shift(Tensor& t, int64_t bytes) { t.data = static_cast<std::byte*>(t.data) + bytes; }

/// What every tensor of rows goes through; `get` picks it, `letters` name its shape.
template <class Get>
void expect_row_checks(int calls, const std::string& name, const std::string& letters,
                       const Get& get, bool optional = false) {
  ValidCall valid;
  const Tensor t{get(valid)};
  const auto last = static_cast<size_t>(t.ndim) - 1;
  const int64_t item{t.dtype == DType::kF32 ? 4 : 2};
  const std::string dtype{t.dtype == DType::kF32 ? "float32" : "bfloat16"};
  const std::string shape{"shape " + letters + " = " + text(t.shape, t.ndim)};
  const std::string remedy{"check the tensor and its dimensions"};
  const auto add = [](Tensor d, size_t i, int64_t by) {
    d.stride[i] += by;
    return "strides " + text(d.stride, d.ndim) + " given";
  };
  Tensor longer{t};
  longer.shape[0] += 1;
  expect_refusals(
      calls, {{[&](ValidCall& v) { get(v).dtype = DType::kF16; },
               {ErrorCode::kType, name, dtype, "float16 given",
                "convert it with .to(torch." + dtype + ")"}},
              {[&](ValidCall& v) { get(v).device = kNowhere; }, no_backend(name)},
              {[&](ValidCall& v) { get(v).shape[0] += 1; },
               {ErrorCode::kValue, name, shape, text(longer.shape, t.ndim) + " given", remedy}},
              {[&](ValidCall& v) { --get(v).ndim; },
               {ErrorCode::kValue, name, shape, text(t.shape, t.ndim - 1) + " given", remedy}},
              {[&](ValidCall& v) { get(v).stride[last] = 2; },
               {ErrorCode::kValue, name, "a contiguous last dimension", add(t, last, 1),
                "pass .contiguous()"}},
              {[&](ValidCall& v) { shift(get(v), 8); },
               {ErrorCode::kValue, name, "rows at 16-byte aligned addresses",
                "a misaligned first element given",
                "pass .clone() or a view that starts at a multiple of 8 elements"}}});
  if (!optional) {
    expect_refusals(calls, {{[&](ValidCall& v) { get(v) = Tensor{}; },
                             {ErrorCode::kValue, name, "a tensor", "nothing given", "pass it"}}});
  }
  for (size_t d{0}; d < last; ++d) {
    const int64_t off{8 / item};  // half of what rows are aligned to
    expect_refusals(calls,
                    {{[&](ValidCall& v) { get(v).stride[d] += off; },
                      {ErrorCode::kValue, name, "rows at 16-byte aligned addresses", add(t, d, off),
                       "pass .contiguous() or pad the rows to a multiple of 8 elements"}},
                     {[&](ValidCall& v) { get(v).stride[d] = 0; },
                      {ErrorCode::kValue, name, "rows that do not overlap", add(t, d, -t.stride[d]),
                       "pass .contiguous()"}}});
  }
}

}  // namespace monomoe::testing
