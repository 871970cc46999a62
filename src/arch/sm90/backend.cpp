#include "arch/sm90/backend.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>

#include "arch/cuda/launch.h"
#include "arch/cuda/schedule_launch.h"
#include "arch/sm90/kernel.h"
#include "arch/sm90/smem_plan.h"
#include "base/expect.h"

namespace monomoe::sm90 {
namespace {

using cuda::Launch;
using cuda::Map;

void check(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  cudaGetLastError();  // nobody else shall find our error
  if (e == cudaErrorMemoryAllocation) throw std::bad_alloc{};
  if (e >= cudaErrorStreamCaptureUnsupported && e <= cudaErrorStreamCaptureWrongThread) {
    throw Refused{
        "group: one call of this shape before a CUDA graph captures it wanted, none given; memory "
        "is allocated by the first call: make it before the capture"};
  }
  throw std::runtime_error{std::string{"monomoe: "} + what + ": " + cudaGetErrorString(e)};
}

/// Makes `device` current for a scope.
class OnDevice {
 public:
  explicit OnDevice(int32_t device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    check(cudaSetDevice(device), "cudaSetDevice");
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_{0};
};

/// Device memory that grows by addition: what was handed out lives as long as the group, because
/// a captured graph may still name it.
class DeviceArena {
 public:
  DeviceArena() = default;
  DeviceArena(DeviceArena&&) = default;
  DeviceArena& operator=(DeviceArena&&) = default;
  ~DeviceArena() {
    for (void* p : blocks_) cudaFree(p);
  }

  /// True: it grew, and the new memory is filled with `fill`.
  bool reserve(int64_t bytes, uint8_t fill) {
    if (bytes <= bytes_) return false;
    bytes = round_up<int64_t>(bytes, int64_t{1} << 21);
    void* p{nullptr};
    check(cudaMalloc(&p, static_cast<size_t>(bytes)), "cudaMalloc");
    blocks_.push_back(p);
    bytes_ = bytes;
    this->fill(fill);
    return true;
  }
  void fill(uint8_t byte) {
    if (bytes_ == 0) return;
    check(cudaMemset(data(), byte, static_cast<size_t>(bytes_)), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  [[nodiscard]] std::byte* data() const {
    return blocks_.empty() ? nullptr : static_cast<std::byte*>(blocks_.back());
  }
  [[nodiscard]] int64_t bytes() const { return bytes_; }

 private:
  std::vector<void*> blocks_;
  int64_t bytes_{0};
};

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

EncodeTiled encode_tiled() {
  static const EncodeTiled encode{[] {
    void* f{nullptr};
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault,
                                           &found),
          "cuTensorMapEncodeTiled");
    return reinterpret_cast<EncodeTiled>(f);
  }()};
  return encode;
}

/// cols x rows x depth of bf16 in boxes of 64 columns x box_rows. Empty tensors get one row of
/// anything.
cuda::TensorMap make_map(const void* data, int64_t cols, int64_t rows, int64_t depth, int64_t row,
                         int64_t matrix, const void* anything, uint32_t box_rows) {
  const auto size = [](int64_t n) { return static_cast<cuuint64_t>(std::max<int64_t>(n, 1)); };
  const bool empty{data == nullptr || rows == 0 || cols == 0 || depth == 0};
  const cuuint64_t dims[3]{empty ? 8 : size(cols), empty ? 1 : size(rows), empty ? 1 : size(depth)};
  const int64_t row_bytes{empty || rows == 1 ? round_up<int64_t>(2 * std::max<int64_t>(cols, 8), 16)
                                             : 2 * row};
  const int64_t matrix_bytes{empty || depth == 1 ? row_bytes : 2 * matrix};
  const cuuint64_t strides[2]{size(row_bytes), size(matrix_bytes)};
  const cuuint32_t box[3]{64, box_rows, 1};
  const cuuint32_t step[3]{1, 1, 1};
  CUtensorMap encoded{};
  static_assert(sizeof(encoded) == sizeof(cuda::TensorMap) &&
                alignof(CUtensorMap) <= alignof(cuda::TensorMap));
  const CUresult e{encode_tiled()(
      &encoded, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(empty ? anything : data),
      dims, strides, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)};
  if (e != CUDA_SUCCESS) {
    throw std::runtime_error{"monomoe: a tensor map was refused, error " + std::to_string(e)};
  }
  return std::bit_cast<cuda::TensorMap>(encoded);
}

constexpr int64_t kCounterHeader{256};        // bytes of CounterState in front of the counters
constexpr int32_t kScheduleSmem{200 * 1024};  // at most
constexpr uint64_t kMeetingNs{1'000'000'000};

uint32_t read_epoch(const uint32_t* word) {
  uint32_t epoch{0};
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaMemcpy(&epoch, word, 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return epoch;
}

/// No flag may look raised: all hold the epoch of the last launch.
void fill_flags(const DeviceArena& flags, uint32_t epoch) {
  if (flags.bytes() == 0) return;
  const std::vector<uint32_t> init(static_cast<size_t>(flags.bytes() / 4), epoch);
  check(cudaMemcpy(flags.data(), init.data(), init.size() * 4, cudaMemcpyHostToDevice),
        "cudaMemcpy");
}

/// Blocks work in pairs.
int32_t whole_pairs(int32_t workers) { return std::max(kPair, workers / kPair * kPair); }

/// One rank's memory.
struct RankMemory {
  DeviceArena heap, local, counters, arrivals, flags, ids, id_flags, counts, scratch;
  DeviceArena chain_words;  // rank 0: kSharedChain, always zero between launches
  int64_t counter_capacity{0};
  int32_t num_flag_arrays{0};
};

/// Launches that must follow each other, whatever streams they were given. Launches of a graph are
/// ordered among themselves only: when it is replayed is the caller's affair.
class Order {
 public:
  std::mutex mutex;  // from begin to end

  void begin(cudaStream_t stream) {
    cudaStreamCaptureStatus status{};
    unsigned long long id{0};
    check(cudaStreamGetCaptureInfo(stream, &status, &id), "cudaStreamGetCaptureInfo");
    const bool captured{status != cudaStreamCaptureStatusNone};
    at_ = captured ? &captured_ : &eager_;
    if (at_->event == nullptr) {
      check(cudaEventCreateWithFlags(&at_->event, cudaEventDisableTiming), "cudaEventCreate");
    } else if (at_->used && (!captured || at_->graph == id)) {
      check(cudaStreamWaitEvent(stream, at_->event, 0), "cudaStreamWaitEvent");
    }
    at_->graph = id;
  }
  void end(cudaStream_t stream) {
    check(cudaEventRecord(at_->event, stream), "cudaEventRecord");
    at_->used = true;
  }
  void destroy() {
    for (Last* l : {&eager_, &captured_}) {
      if (l->event != nullptr) cudaEventDestroy(l->event);
    }
  }

 private:
  struct Last {
    cudaEvent_t event{nullptr};
    unsigned long long graph{0};
    bool used{false};
  };
  Last eager_, captured_;
  Last* at_{nullptr};
};

/// The order of launches of all groups with several ranks on a device: ranks wait for each other,
/// and those of two groups are never assumed to fit at the same time. Lives as long as the process.
Order& order_of_many(int32_t device) {
  static std::mutex mutex;
  static std::map<int32_t, Order> orders;
  const std::lock_guard lock{mutex};
  return orders[device];
}

/// A kernel and the shape of its launches.
struct Kernel {
  const void* address;
  int32_t blocks, threads, smem;
};

class Group final : public DeviceGroup {
 public:
  Group(int32_t device, int32_t ranks, double timeout_s)
      : device_{device},
        timeout_ns_{static_cast<uint64_t>(timeout_s * 1e9)},
        ranks_(static_cast<size_t>(ranks)),
        streams_(static_cast<size_t>(ranks)),
        done_(static_cast<size_t>(ranks)) {}

  /// Loads kernels, allocates what does not depend on shapes, and proves that ranks run at the same
  /// time. All of it before any launch waits for another.
  void start(int32_t absent_rank) {
    const OnDevice on{device_};
    const size_t n{ranks()};
    workers_ = whole_pairs(query(device_).multiprocessors / static_cast<int32_t>(n));
    fixed_.reserve(static_cast<int64_t>(n * sizeof(Fixed) + n * n * sizeof(LaunchWord)), 0);
    check(cudaHostAlloc(reinterpret_cast<void**>(&records_), n * sizeof(Records),
                        cudaHostAllocMapped | cudaHostAllocPortable),
          "cudaHostAlloc");
    std::memset(static_cast<void*>(records_), 0, n * sizeof(Records));
    const std::pair<const void*, int32_t> kernels[]{{pass_kernel_address(false), kSmemBytes},
                                                    {pass_kernel_address(true), kSmemBytes},
                                                    {schedule_kernel_address(), kScheduleSmem},
                                                    {meet_kernel_address(), 0}};
    for (const auto& [kernel, smem] : kernels) {
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem),
            "cudaFuncSetAttribute");
    }
    if (n == 1) return;
    check(cudaEventCreateWithFlags(&begin_, cudaEventDisableTiming), "cudaEventCreate");
    for (size_t r{0}; r < n; ++r) {
      check(cudaStreamCreateWithFlags(&streams_[r], cudaStreamNonBlocking), "cudaStreamCreate");
      check(cudaEventCreateWithFlags(&done_[r], cudaEventDisableTiming), "cudaEventCreate");
    }
    meet(absent_rank);
  }

  ~Group() override {
    cudaDeviceSynchronize();
    for (size_t r{0}; r < streams_.size(); ++r) {
      if (streams_[r] != nullptr) cudaStreamDestroy(streams_[r]);
      if (done_[r] != nullptr) cudaEventDestroy(done_[r]);
    }
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    own_order_.destroy();
    cudaFreeHost(records_);
    cudaGetLastError();  // a group that could not start has nothing to report twice
  }

  [[nodiscard]] int32_t workers_per_rank() const override { return workers_; }

  void schedule(const std::vector<ScheduleInput>& ranks, const TileShape& tile, const IdsInfo& ids,
                const Circumstances& tests, void* stream) override;
  void run(const std::vector<RankInput>& ranks, int32_t comm_workers, const Circumstances& tests,
           void* stream) override;
  std::optional<Fault> take_fault() override;
  std::optional<BadId> take_bad_id() override;
  std::vector<uint64_t> take_clocks() override;
  void poison(uint8_t byte) override;
  void set_epoch(uint32_t epoch, bool renews) override;

 private:
  /// What a rank's launches report to the host, in memory that both see.
  struct Records {
    cuda::FaultRecord fault;
    cuda::BadIdRecord bad_id;
  };
  /// Small words of a rank that never move.
  struct Fixed {
    cuda::RankState state;
    cuda::ScheduleState schedule;
    int32_t abort;
    cuda::Meeting meeting;  // rank 0's
    uint64_t clocks[cuda::kNumRoleTimes];
  };

  Fixed* fixed(size_t r) const { return reinterpret_cast<Fixed*>(fixed_.data()) + r; }
  LaunchWord* words(size_t r) const {
    return reinterpret_cast<LaunchWord*>(fixed(ranks())) + r * ranks();
  }
  [[nodiscard]] size_t ranks() const { return ranks_.size(); }

  void reserve(const std::vector<RankInput>& in, const std::vector<Layout>& layouts);
  cuda::Heap heap_of(size_t r, const Layout& layout) const;
  Launch make_launch(const RankInput& in, size_t r, const Layout& layout) const;
  template <class Set>
  void set_backward_maps(const RankInput& in, const Set& set, Launch* l) const;
  /// One launch a rank: on the caller's stream, or on the ranks' own, joined to it at both ends.
  template <class Args>
  void launch_all(const Kernel& kernel, std::vector<Args>& args, int32_t absent_rank,
                  cudaStream_t stream);
  void meet(int32_t absent_rank);

  int32_t device_;
  uint64_t timeout_ns_;
  int32_t workers_{1};
  uint8_t fill_{0};
  std::vector<RankMemory> ranks_;
  DeviceArena fixed_;
  Records* records_{nullptr};
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> done_;
  cudaEvent_t begin_{nullptr};
  Order own_order_;
};

/// Allocates what the call needs. Only the first call of a shape allocates, and only then it may
/// wait for the device.
void Group::reserve(const std::vector<RankInput>& in, const std::vector<Layout>& layouts) {
  for (size_t r{0}; r < ranks(); ++r) {
    RankMemory& m{ranks_[r]};
    const WorkspaceFacts& f{in[r].facts};
    m.heap.reserve(layouts[r].heap_bytes, fill_);
    m.local.reserve(layouts[r].local_bytes + kRegionAlign, fill_);
    if (m.counters.reserve(kCounterHeader + 8 * counter_layout(f).words, 0)) {
      m.counter_capacity = (m.counters.bytes() - kCounterHeader) / 8;
    }
    m.arrivals.reserve(4 * counter_count(f, Counter::kArrival) + 4, 0);
    m.chain_words.reserve(r == 0 ? 4 * counter_count(f, Counter::kSharedChain) : 0, 0);
    const int64_t flag_bytes{4 * counter_count(f, Counter::kStageFlag) + 4};
    const bool grows{flag_bytes > m.flags.bytes()};
    if (m.flags.reserve(grows ? max_of(flag_bytes, 2 * m.flags.bytes()) : 0, 0)) {
      cuda::RankState& state{fixed(r)->state};  // on the device
      fill_flags(m.flags, read_epoch(&state.epoch));
      expect(m.num_flag_arrays < cuda::kMaxFlagArrays, "flags more than double when they grow");
      const cuda::FlagArray array{reinterpret_cast<int32_t*>(m.flags.data()), m.flags.bytes() / 4};
      check(cudaMemcpy(&state.arrays[m.num_flag_arrays++], &array, sizeof(array),
                       cudaMemcpyHostToDevice),
            "cudaMemcpy");
      check(cudaMemcpy(&state.num_arrays, &m.num_flag_arrays, 4, cudaMemcpyHostToDevice),
            "cudaMemcpy");
    }
  }
}

cuda::Heap Group::heap_of(size_t r, const Layout& layout) const {
  const RankMemory& m{ranks_[r]};
  const auto at = [&](Region g) { return m.heap.data() + layout[g].offset; };
  return {reinterpret_cast<Bf16*>(at(Region::kXStage)),
          reinterpret_cast<Bf16*>(at(Region::kDyStage)),
          reinterpret_cast<float*>(at(Region::kWeightStage)),
          reinterpret_cast<Bf16*>(at(Region::kSlots)),
          reinterpret_cast<float*>(at(Region::kSlotScalars)),
          {m.heap.data(), reinterpret_cast<int32_t*>(m.arrivals.data()),
           reinterpret_cast<int32_t*>(m.flags.data()), words(r), &fixed(r)->abort}};
}

Launch Group::make_launch(const RankInput& in, size_t r, const Layout& layout) const {
  const RankMemory& m{ranks_[r]};
  Launch l{};
  static_cast<Operands&>(l) = in.operands;
  expect(in.plan.tile.rows == FixedTile::rows && in.plan.tile.cols == FixedTile::cols &&
             in.plan.tile.sum_tokens == FixedTile::sum_tokens,
         "kernels are compiled for one tile shape");
  l.plan = in.plan;
  l.local = m.local.data();
  l.layout = layout;
  l.counters = reinterpret_cast<int32_t*>(m.counters.data() + kCounterHeader);
  l.counter_capacity = m.counter_capacity;
  l.counter_layout = counter_layout(in.facts);
  l.counter_state = reinterpret_cast<cuda::CounterState*>(m.counters.data());
  l.state = &fixed(r)->state;
  l.fault = &records_[r].fault;
  l.timeout_ns = timeout_ns_;
  l.clocks = fixed(r)->clocks;

  const Dims& d{in.plan.dims};
  const int64_t ring{int64_t{in.plan.knobs.ring_tiles} * in.plan.tile.rows};
  const int64_t saved{int64_t{in.plan.knobs.save_tiles} * in.plan.tile.rows};
  const int64_t experts{d.local_experts()};
  const WeightRows& w{in.operands.weights};
  const auto set = [&](Map which, const void* data, int64_t cols, int64_t rows, int64_t depth,
                       int64_t row, int64_t matrix) {
    const auto i = static_cast<size_t>(which);
    l.maps[i] = make_map(data, cols, rows, depth, row, matrix, m.local.data(), 64);
    l.tall[i] = make_map(data, cols, rows, depth, row, matrix, m.local.data(), 128);
  };
  const auto weight = [&](Map which, const Rows& t, int64_t cols, int64_t rows, int64_t depth) {
    set(which, t.data, cols, rows, depth, t.row, t.matrix);
  };
  set(Map::kXRing, l.region<Bf16>(Region::kXRing), d.hidden, ring, 1, d.hidden, 0);
  set(Map::kXSaved,
      in.plan.knobs.save_x ? in.operands.saved_region<Bf16>(in.operands.saved_layout.x) : nullptr,
      d.hidden, saved, 1, d.hidden, 0);
  set(Map::kAct, l.region<Bf16>(Region::kActRing), d.inter, ring, 1, d.inter, 0);
  weight(Map::kGate, w.gate, d.hidden, d.inter, experts);
  weight(Map::kUp, w.up, d.hidden, d.inter, experts);
  weight(Map::kDown, w.down, d.inter, d.hidden, experts);
  weight(Map::kX, in.operands.x, d.hidden, d.tokens, 1);
  set(Map::kSharedAct, d.shared > 0 ? l.region<Bf16>(Region::kSharedAct) : nullptr, d.shared,
      d.tokens, 1, d.shared, 0);
  weight(Map::kSharedGate, w.shared_gate, d.hidden, d.shared, 1);
  weight(Map::kSharedUp, w.shared_up, d.hidden, d.shared, 1);
  weight(Map::kSharedDown, w.shared_down, d.shared, d.hidden, 1);
  if (in.plan.backward) set_backward_maps(in, set, &l);
  return l;
}

/// What only backward reads: set(map, data, columns, rows, matrices, row and matrix stride).
template <class Set>
void Group::set_backward_maps(const RankInput& in, const Set& set, Launch* l) const {
  const Dims& d{in.plan.dims};
  const int64_t ring{int64_t{in.plan.knobs.ring_tiles} * in.plan.tile.rows};
  const Rows& dy{in.operands.dy};
  set(Map::kDyRing, l->region<Bf16>(Region::kDyRing), d.hidden, ring, 1, d.hidden, 0);
  set(Map::kDy, dy.data, d.hidden, d.tokens, 1, dy.row, dy.matrix);
  // dgate and dup of a row lie next to each other, but a map of their own columns each: a k tail of
  // dgate must not read dup.
  const auto grad = [&](Map which, Region region, int64_t inter, int64_t rows) {
    set(which, inter > 0 ? l->region<Bf16>(region) : nullptr, inter, rows, 2, 2 * inter, inter);
  };
  grad(Map::kGrad, Region::kGradRing, d.inter, ring);
  grad(Map::kSharedGrad, Region::kSharedGrad, d.shared, d.tokens);
}

template <class Args>
void Group::launch_all(const Kernel& k, std::vector<Args>& args, int32_t absent_rank,
                       cudaStream_t stream) {
  const auto launch = [&](size_t r, cudaStream_t on) {
    void* params[]{&args[r]};
    check(cudaLaunchKernel(k.address, dim3(static_cast<unsigned>(k.blocks)),
                           dim3(static_cast<unsigned>(k.threads)), params,
                           static_cast<size_t>(k.smem), on),
          "launch");
  };
  Order& order{ranks() == 1 ? own_order_ : order_of_many(device_)};
  const std::lock_guard lock{order.mutex};
  order.begin(stream);
  if (ranks() == 1) {
    launch(0, stream);
  } else {
    check(cudaEventRecord(begin_, stream), "cudaEventRecord");
    for (size_t r{0}; r < ranks(); ++r) {
      check(cudaStreamWaitEvent(streams_[r], begin_, 0), "cudaStreamWaitEvent");
      if (static_cast<int32_t>(r) != absent_rank) launch(r, streams_[r]);
      check(cudaEventRecord(done_[r], streams_[r]), "cudaEventRecord");
    }
    for (size_t r{0}; r < ranks(); ++r) {
      check(cudaStreamWaitEvent(stream, done_[r], 0), "cudaStreamWaitEvent");
    }
  }
  order.end(stream);
}

/// Launches as a call does, and asks whether all ranks were there at the same time.
void Group::meet(int32_t absent_rank) {
  std::vector<cuda::MeetLaunch> launches(
      ranks(), {&fixed(0)->meeting, static_cast<int32_t>(ranks()), kMeetingNs});
  launch_all({meet_kernel_address(), 1, 1, 0}, launches, absent_rank, nullptr);
  check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  cuda::Meeting m{};
  check(cudaMemcpy(&m, &fixed(0)->meeting, sizeof(m), cudaMemcpyDeviceToHost), "cudaMemcpy");
  if (m.given_up == 0) return;
  throw Refused{"group: launches of " + std::to_string(ranks()) +
                " ranks that run at the same time on cuda:" + std::to_string(device_) +
                " wanted, " + std::to_string(m.given_up) +
                " met within 1 s; set CUDA_DEVICE_MAX_CONNECTIONS=32 before the process first uses "
                "CUDA, leave the GPU to it, or use fewer ranks"};
}

void Group::run(const std::vector<RankInput>& in, int32_t comm_workers, const Circumstances& tests,
                void* stream) {
  const OnDevice on{device_};
  std::vector<Layout> layouts;
  for (const RankInput& r : in) layouts.push_back(workspace_layout(r.facts));
  reserve(in, layouts);
  std::vector<Launch> launches;
  for (size_t r{0}; r < ranks(); ++r) {
    launches.push_back(make_launch(in[r], r, layouts[r]));
    Launch& l{launches.back()};
    l.comm_workers = comm_workers;
    for (size_t peer{0}; peer < ranks(); ++peer) l.heaps[peer] = heap_of(peer, layouts[peer]);
    l.chain = launches[0].region<float>(Region::kChain);
    l.chain_words = reinterpret_cast<int32_t*>(ranks_[0].chain_words.data());
    if (static_cast<int32_t>(r) == tests.odd_rank) l.odd = tests.odd;
    if (r < tests.pauses.size()) std::ranges::copy(tests.pauses[r], l.pause_us);
  }
  const int32_t workers{std::min(workers_, whole_pairs(in[0].plan.knobs.workers))};
  launch_all({pass_kernel_address(in[0].plan.backward), workers, kThreads, kSmemBytes}, launches,
             tests.absent_rank, static_cast<cudaStream_t>(stream));
}

void Group::schedule(const std::vector<ScheduleInput>& in, const TileShape& tile,
                     const IdsInfo& ids, const Circumstances& tests, void* stream) {
  const OnDevice on{device_};
  int64_t group_tokens{0};
  for (const ScheduleInput& r : in) group_tokens += r.dims.tokens;
  const int64_t experts{in[0].dims.experts};
  const int32_t blocks{workers_};
  const auto num_ranks = static_cast<int32_t>(ranks());
  const int32_t parts{ceil_div(blocks, num_ranks)};
  // hist[warps][E], three more rows of E, a few words: in shared memory if they fit.
  constexpr int64_t kWords{kScheduleSmem / 4};
  const auto warps = static_cast<int32_t>(
      std::clamp<int64_t>((kWords - 16) / experts - 3, 1, cuda::kScheduleThreads / 32));
  const int64_t words{(warps + 3) * experts + 16};
  const bool in_smem{words <= kWords};
  std::vector<cuda::ScheduleLaunch> launches;
  for (size_t r{0}; r < ranks(); ++r) {
    RankMemory& m{ranks_[r]};
    const Dims& d{in[r].dims};
    m.counts.reserve(4 * parts * num_ranks * experts, 0);
    if (!in_smem) m.scratch.reserve(4 * words * blocks, 0);
    if (num_ranks > 1) {
      m.ids.reserve(8 * int64_t{d.tokens} * d.top_k, 0);
      if (m.id_flags.reserve(4 * parts, 0)) {
        fill_flags(m.id_flags, read_epoch(&fixed(r)->schedule.epoch));
      }
    }
    cuda::ScheduleLaunch l{};
    l.dims = d;
    l.tile = tile;
    l.layout = table_layout(d, tile, group_tokens);
    for (size_t h{0}; h < ranks(); ++h) l.home_tokens[h + 1] = l.home_tokens[h] + in[h].dims.tokens;
    l.ids = in[r].ids;
    l.row = ids.row;
    l.col = ids.col;
    l.wide = ids.wide;
    l.words = in[r].words;
    l.counts = reinterpret_cast<int32_t*>(m.counts.data());
    l.parts = parts;
    l.warps = warps;
    l.state = &fixed(r)->schedule;
    if (!in_smem) l.scratch = reinterpret_cast<int32_t*>(m.scratch.data());
    l.scratch_words = words;
    l.fault = &records_[r].fault;
    l.bad_id = &records_[r].bad_id;
    l.timeout_ns = timeout_ns_;
    if (r < tests.pauses.size()) std::ranges::copy(tests.pauses[r], l.pause_us);
    launches.push_back(l);
  }
  for (cuda::ScheduleLaunch& l : launches) {
    for (size_t h{0}; h < ranks(); ++h) {
      l.heaps[h] = {reinterpret_cast<int32_t*>(ranks_[h].ids.data()),
                    reinterpret_cast<int32_t*>(ranks_[h].id_flags.data()), &fixed(h)->abort};
    }
  }
  const int32_t smem{in_smem ? static_cast<int32_t>(4 * words) : 0};
  launch_all({schedule_kernel_address(), blocks, cuda::kScheduleThreads, smem}, launches,
             tests.absent_rank, static_cast<cudaStream_t>(stream));
}

/// Has the device completed this record?
template <class Record>
bool complete(Record& r) {
  return std::atomic_ref{r.set}.load(std::memory_order_acquire) == 2;
}

std::optional<Fault> Group::take_fault() {
  for (size_t r{0}; r < ranks(); ++r) {
    cuda::FaultRecord& f{records_[r].fault};
    if (!complete(f)) continue;
    Fault out;
    out.reason = static_cast<FaultReason>(f.reason);
    out.rank = f.rank;
    out.worker = f.worker;
    out.line = static_cast<Line>(f.line);
    out.task.kind = static_cast<Kind>(f.kind);
    out.task.row = f.row;
    out.task.col = f.col;
    out.counter = {static_cast<Counter>(f.counter), f.counter_rank, f.counter_index};
    out.seen = f.seen;
    out.wanted = f.wanted;
    out.epoch = f.epoch;
    out.backward = f.backward != 0;
    out.waited_s = static_cast<double>(timeout_ns_) * 1e-9;
    out.peer = f.peer;
    out.own = f.own;
    out.other = f.other;
    if (out.reason == FaultReason::kIds) out.missing.push_back(f.peer);
    for (int32_t i{0}; i < f.num_words; ++i) {
      if (i != f.rank && !reached(f.epochs[i], f.epoch)) out.missing.push_back(i);
    }
    return out;
  }
  return std::nullopt;
}

std::optional<BadId> Group::take_bad_id() {
  for (size_t r{0}; r < ranks(); ++r) {
    cuda::BadIdRecord& f{records_[r].bad_id};
    if (!complete(f)) continue;
    const BadId out{f.rank, f.token, f.slot, f.value, f.experts};
    std::atomic_ref{f.set}.store(0, std::memory_order_release);
    return out;
  }
  return std::nullopt;
}

std::vector<uint64_t> Group::take_clocks() {
#ifdef MONOMOE_ROLE_CLOCKS
  const OnDevice on{device_};
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  std::vector<uint64_t> sum(cuda::kNumRoleTimes);
  for (size_t r{0}; r < ranks(); ++r) {
    std::array<uint64_t, cuda::kNumRoleTimes> own{};
    check(cudaMemcpy(own.data(), fixed(r)->clocks, sizeof(own), cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    check(cudaMemset(fixed(r)->clocks, 0, sizeof(own)), "cudaMemset");
    for (size_t i{0}; i < sum.size(); ++i) sum[i] += own[i];
  }
  return sum;
#else
  return {};
#endif
}

void Group::poison(uint8_t byte) {
  const OnDevice on{device_};
  fill_ = byte;
  for (RankMemory& m : ranks_) {
    m.heap.fill(byte);
    m.local.fill(byte);
  }
}

void Group::set_epoch(uint32_t epoch, bool renews) {
  const OnDevice on{device_};
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const uint32_t before{epoch - 1};
  for (size_t r{0}; r < ranks(); ++r) {
    for (uint32_t* word : {&fixed(r)->state.epoch, &fixed(r)->schedule.epoch}) {
      check(cudaMemcpy(word, &before, 4, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    const std::vector<LaunchWord> init(ranks(), LaunchWord::idle(before));
    check(
        cudaMemcpy(words(r), init.data(), init.size() * sizeof(LaunchWord), cudaMemcpyHostToDevice),
        "cudaMemcpy");
    if (renews) fill_flags(ranks_[r].flags, before);
    fill_flags(ranks_[r].id_flags, before);
  }
}

Caps look(int32_t device) {
  cudaDeviceProp p{};
  if (cudaGetDeviceProperties(&p, device) != cudaSuccess) {
    cudaGetLastError();
    Caps c;
    c.reason = "a CUDA device with that number wanted, none found";
    return c;
  }
  return judge({p.name, p.major, p.minor, static_cast<int64_t>(p.sharedMemPerBlockOptin),
                p.multiProcessorCount});
}

}  // namespace

int32_t device_count() {
  int n{0};
  if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
  cudaGetLastError();
  return 0;
}

Caps query(int32_t device) {
  static std::mutex mutex;
  static std::map<int32_t, Caps> known;  // asking the driver takes longer than a call may
  const std::lock_guard lock{mutex};
  const auto [at, is_new] = known.try_emplace(device);
  if (is_new) at->second = look(device);
  return at->second;
}

std::unique_ptr<DeviceGroup> DeviceGroup::make(int32_t device, int32_t ranks, double timeout_s,
                                               const Circumstances& tests) {
  if (ranks > cuda::kMaxRanks) {
    throw Refused{"group: at most " + std::to_string(cuda::kMaxRanks) + " ranks on a GPU wanted, " +
                  std::to_string(ranks) + " given; use fewer"};
  }
  auto group = std::make_unique<Group>(device, ranks, timeout_s);
  group->start(tests.absent_rank);
  return group;
}

std::vector<std::pair<std::string, std::string>> environment() {
  const auto version = [](int v) {
    return v == 0 ? "none" : std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
  };
  int driver{0};
  int runtime{0};
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = 0;
  cudaGetLastError();
  std::vector<std::pair<std::string, std::string>> out{
      {"kernels", "sm_90a (Hopper), built with CUDA " + version(CUDART_VERSION)},
      {"CUDA runtime", version(runtime)},
      {"CUDA driver", version(driver)},
  };
  for (int32_t i{0}; i < device_count(); ++i) {
    const Caps c{query(i)};
    out.emplace_back("cuda:" + std::to_string(i), c.usable ? c.name + ", usable" : c.reason);
  }
  return out;
}

}  // namespace monomoe::sm90
