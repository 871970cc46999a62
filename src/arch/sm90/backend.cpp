#include "arch/sm90/backend.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
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

constexpr int64_t kCounterHeader{256};  // bytes of CounterState in front of the counters
constexpr int32_t kBadId{-1};           // FaultRecord::kind of a bad id

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

/// One rank's memory.
struct RankMemory {
  DeviceArena heap, local, counters, arrivals, flags, ids, id_flags, counts;
  DeviceArena chain_words;  // rank 0: kSharedChain, always zero between launches
  int64_t counter_capacity{0};
};

class Group final : public DeviceGroup {
 public:
  Group(int32_t device, int32_t ranks, double timeout_s)
      : device_{device},
        timeout_ns_{static_cast<uint64_t>(timeout_s * 1e9)},
        ranks_(static_cast<size_t>(ranks)) {
    const OnDevice on{device};
    workers_ = std::max(1, query(device).multiprocessors / ranks);
    const auto n = static_cast<size_t>(ranks);
    fixed_.reserve(static_cast<int64_t>(n * sizeof(Fixed) + n * n * sizeof(LaunchWord)), 0);
    check(cudaHostAlloc(reinterpret_cast<void**>(&faults_), n * sizeof(cuda::FaultRecord),
                        cudaHostAllocMapped | cudaHostAllocPortable),
          "cudaHostAlloc");
    std::memset(faults_, 0, n * sizeof(cuda::FaultRecord));
    const auto allow = [](const void* kernel, int bytes) {
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "cudaFuncSetAttribute");
    };
    allow(pass_kernel_address(false), kSmemBytes);
    allow(pass_kernel_address(true), kSmemBytes);
    allow(schedule_kernel_address(), 200 * 1024);
    streams_.resize(n);
    done_.resize(n);
    check(cudaEventCreateWithFlags(&begin_, cudaEventDisableTiming), "cudaEventCreate");
    check(cudaEventCreateWithFlags(&last_, cudaEventDisableTiming), "cudaEventCreate");
    for (size_t r{0}; ranks > 1 && r < n; ++r) {
      check(cudaStreamCreateWithFlags(&streams_[r], cudaStreamNonBlocking), "cudaStreamCreate");
      check(cudaEventCreateWithFlags(&done_[r], cudaEventDisableTiming), "cudaEventCreate");
    }
  }

  ~Group() override {
    cudaDeviceSynchronize();
    for (size_t r{0}; r < streams_.size(); ++r) {
      if (streams_[r] != nullptr) cudaStreamDestroy(streams_[r]);
      if (done_[r] != nullptr) cudaEventDestroy(done_[r]);
    }
    cudaEventDestroy(begin_);
    cudaEventDestroy(last_);
    cudaFreeHost(faults_);
  }

  [[nodiscard]] int32_t workers_per_rank() const override { return workers_; }

  void schedule(const std::vector<ScheduleInput>& ranks, const TileShape& tile, const IdsInfo& ids,
                void* stream) override;
  void run(const std::vector<RankInput>& ranks, int32_t comm_workers, int32_t absent_rank,
           void* stream) override;
  std::optional<Fault> take_fault() override;
  std::optional<BadId> take_bad_id() override;
  std::vector<uint64_t> take_clocks() override;
  void poison(uint8_t byte) override;
  void set_epoch(uint32_t epoch) override;

 private:
  /// Small words of a rank that never move.
  struct Fixed {
    cuda::RankState state;
    cuda::ScheduleState schedule;
    int32_t abort;
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
  void launch_all(const void* kernel, std::vector<Args>& args, int32_t blocks, int32_t threads,
                  int32_t smem, int32_t absent_rank, cudaStream_t stream);

  int32_t device_;
  uint64_t timeout_ns_;
  int32_t workers_{1};
  uint8_t fill_{0};
  std::vector<RankMemory> ranks_;
  DeviceArena fixed_;
  cuda::FaultRecord* faults_{nullptr};
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> done_;
  cudaEvent_t begin_{nullptr};
  cudaEvent_t last_{nullptr};
  cudaStream_t last_stream_{nullptr};
  bool launched_{false};
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
    if (m.flags.reserve(4 * counter_count(f, Counter::kStageFlag) + 4, 0)) {
      fill_flags(m.flags, read_epoch(&fixed(r)->state.epoch));
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
  l.fault = faults_ + r;
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
void Group::launch_all(const void* kernel, std::vector<Args>& args, int32_t blocks, int32_t threads,
                       int32_t smem, int32_t absent_rank, cudaStream_t stream) {
  const auto launch = [&](size_t r, cudaStream_t on) {
    void* params[]{&args[r]};
    check(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)),
                           dim3(static_cast<unsigned>(threads)), params, static_cast<size_t>(smem),
                           on),
          "launch");
  };
  cudaStreamCaptureStatus capture{};
  check(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing");
  const bool captured{capture != cudaStreamCaptureStatusNone};
  // Launches of a group follow each other, whatever streams they were given.
  if (launched_ && stream != last_stream_ && !captured) {
    check(cudaStreamWaitEvent(stream, last_, 0), "cudaStreamWaitEvent");
  }
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
  if (captured) return;
  check(cudaEventRecord(last_, stream), "cudaEventRecord");
  last_stream_ = stream;
  launched_ = true;
}

void Group::run(const std::vector<RankInput>& in, int32_t comm_workers, int32_t absent_rank,
                void* stream) {
  const OnDevice on{device_};
  std::vector<Layout> layouts;
  for (const RankInput& r : in) layouts.push_back(workspace_layout(r.facts));
  reserve(in, layouts);
  std::vector<Launch> launches;
  for (size_t r{0}; r < ranks(); ++r) {
    launches.push_back(make_launch(in[r], r, layouts[r]));
    launches.back().comm_workers = comm_workers;
    for (size_t peer{0}; peer < ranks(); ++peer) {
      launches.back().heaps[peer] = heap_of(peer, layouts[peer]);
    }
    launches.back().chain = launches[0].region<float>(Region::kChain);
    launches.back().chain_words = reinterpret_cast<int32_t*>(ranks_[0].chain_words.data());
  }
  const int32_t workers{std::min(workers_, in[0].plan.knobs.workers)};
  launch_all(pass_kernel_address(in[0].plan.backward), launches, workers, kThreads, kSmemBytes,
             absent_rank, static_cast<cudaStream_t>(stream));
}

void Group::schedule(const std::vector<ScheduleInput>& in, const TileShape& tile,
                     const IdsInfo& ids, void* stream) {
  const OnDevice on{device_};
  int64_t group_tokens{0};
  for (const ScheduleInput& r : in) group_tokens += r.dims.tokens;
  const int64_t experts{in[0].dims.experts};
  const int32_t blocks{workers_};
  const auto num_ranks = static_cast<int32_t>(ranks());
  const int32_t parts{ceil_div(blocks, num_ranks)};
  // Shared memory: hist[warps][E], three more rows of E, a few words.
  constexpr int64_t kWords{200 * 1024 / 4};
  const auto warps = static_cast<int32_t>(
      std::clamp<int64_t>((kWords - 16) / experts - 3, 1, cuda::kScheduleThreads / 32));
  if (4 * experts + 16 > kWords) {
    throw std::runtime_error{"monomoe: too many experts for the Hopper schedule"};
  }
  std::vector<cuda::ScheduleLaunch> launches;
  for (size_t r{0}; r < ranks(); ++r) {
    RankMemory& m{ranks_[r]};
    const Dims& d{in[r].dims};
    m.counts.reserve(4 * parts * num_ranks * experts, 0);
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
    l.fault = faults_ + r;
    l.abort = &fixed(r)->abort;
    l.timeout_ns = timeout_ns_;
    launches.push_back(l);
  }
  for (cuda::ScheduleLaunch& l : launches) {
    for (size_t h{0}; h < ranks(); ++h) {
      l.heaps[h] = {reinterpret_cast<int32_t*>(ranks_[h].ids.data()),
                    reinterpret_cast<int32_t*>(ranks_[h].id_flags.data())};
    }
  }
  const auto smem = static_cast<int32_t>(4 * ((warps + 3) * experts + 16));
  launch_all(schedule_kernel_address(), launches, blocks, cuda::kScheduleThreads, smem, -1,
             static_cast<cudaStream_t>(stream));
}

std::optional<Fault> Group::take_fault() {
  for (size_t r{0}; r < ranks(); ++r) {
    const volatile cuda::FaultRecord& f{faults_[r]};
    if (f.set != 2 || f.kind == kBadId) continue;
    Fault out;
    out.rank = f.rank;
    out.worker = f.worker;
    out.line = static_cast<Line>(f.line);
    out.task.kind = static_cast<Kind>(f.kind < 0 ? 0 : static_cast<int32_t>(f.kind));
    out.task.row = f.row;
    out.task.col = f.col;
    out.counter = {static_cast<Counter>(f.counter), f.counter_rank, f.counter_index};
    out.seen = f.seen;
    out.wanted = f.wanted;
    out.epoch = f.epoch;
    out.waited_s = static_cast<double>(timeout_ns_) * 1e-9;
    for (int32_t i{0}; i < f.num_words; ++i) {
      if (static_cast<int32_t>(f.epochs[i] - f.epoch) < 0) out.missing.push_back(i);
    }
    return out;
  }
  return std::nullopt;
}

std::optional<BadId> Group::take_bad_id() {
  for (size_t r{0}; r < ranks(); ++r) {
    volatile cuda::FaultRecord& f{faults_[r]};
    if (f.set != 2 || f.kind != kBadId) continue;
    const BadId out{f.rank, f.row, f.col, f.seen, f.wanted};
    f.set = 0;
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

void Group::set_epoch(uint32_t epoch) {
  const OnDevice on{device_};
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const uint32_t before{epoch - 1};
  for (size_t r{0}; r < ranks(); ++r) {
    for (uint32_t* word : {&fixed(r)->state.epoch, &fixed(r)->schedule.epoch}) {
      check(cudaMemcpy(word, &before, 4, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    const std::vector<LaunchWord> init(ranks(), LaunchWord{before, 0, 0, 0});
    check(
        cudaMemcpy(words(r), init.data(), init.size() * sizeof(LaunchWord), cudaMemcpyHostToDevice),
        "cudaMemcpy");
    fill_flags(ranks_[r].flags, before);
    fill_flags(ranks_[r].id_flags, before);
  }
}

Caps look(int32_t device) {
  Caps c;
  cudaDeviceProp p{};
  if (cudaGetDeviceProperties(&p, device) != cudaSuccess) {
    c.reason = "no CUDA device " + std::to_string(device);
    return c;
  }
  c.name = p.name;
  c.multiprocessors = p.multiProcessorCount;
  const auto arch = "compute capability " + std::to_string(p.major) + "." + std::to_string(p.minor);
  if (p.major != 9 || p.minor != 0) {
    c.reason =
        "a Hopper GPU (compute capability 9.0) wanted, " + c.name + " with " + arch + " found";
  } else if (p.sharedMemPerBlockOptin < static_cast<size_t>(kSmemBytes)) {
    c.reason = std::to_string(kSmemBytes) + " bytes of shared memory a block wanted, " +
               std::to_string(p.sharedMemPerBlockOptin) + " found";
  } else {
    c.usable = true;
  }
  return c;
}

}  // namespace

int32_t device_count() {
  int n{0};
  return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

Caps query(int32_t device) {
  static std::mutex mutex;
  static std::map<int32_t, Caps> known;  // asking the driver takes longer than a call may
  const std::lock_guard lock{mutex};
  const auto [at, is_new] = known.try_emplace(device);
  if (is_new) at->second = look(device);
  return at->second;
}

std::unique_ptr<DeviceGroup> DeviceGroup::make(int32_t device, int32_t ranks, double timeout_s) {
  expect(ranks <= cuda::kMaxRanks, "validate.cpp limits the ranks of a GPU group");
  return std::make_unique<Group>(device, ranks, timeout_s);
}

}  // namespace monomoe::sm90
