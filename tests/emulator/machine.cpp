#include "emulator/machine.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <tuple>

namespace emulator {
namespace {

constexpr size_t kStackBytes{size_t{1} << 18};

struct Warp {
  std::vector<uint64_t> in = std::vector<uint64_t>(32);
  std::vector<uint64_t> out = std::vector<uint64_t>(32);
  int32_t here{0};
  uint64_t round{0};
};

struct Barrier {
  uint32_t here{0};
  uint64_t round{0};
};

struct Fiber {
  ucontext_t context{};
  void* stack{nullptr};
  bool ended{false};
  std::exception_ptr error;
  const std::function<bool()>* ready{nullptr};
  const char* what{"start"};
  Block* block{nullptr};
  uint32_t thread{0};
  Warp* warp{nullptr};
  const std::function<void()>* body{nullptr};
  int32_t pending_stores{0};
};

struct Machine {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<std::vector<uint8_t>> shared;
  std::map<std::tuple<const void*, int32_t>, Barrier> barriers;
  std::vector<std::function<void()>> async;
  std::vector<std::function<void()>> slow;  // copies that are overtaken by many others
  std::mt19937_64 dice;
  ucontext_t main{};
  Fiber* current{nullptr};
};
Machine* machine{nullptr};

void enter() {
  Fiber& f{*machine->current};
  try {
    (*f.body)();
  } catch (...) {
    f.error = std::current_exception();
  }
  f.ended = true;
  swapcontext(&f.context, &machine->main);
}

void prepare(Fiber& f) {
  f.stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (f.stack == MAP_FAILED) throw std::runtime_error{"emulator: no memory for stacks"};
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack;
  f.context.uc_stack.ss_size = kStackBytes;
  f.context.uc_link = nullptr;
  makecontext(&f.context, enter, 0);
}

void make_fibers(const Launch& l) {
  Machine& m{*machine};
  const size_t first{m.blocks.size()};
  for (uint32_t b{0}; b < l.blocks; ++b) {
    m.shared.emplace_back(l.shared_bytes + 1024);
    auto at = reinterpret_cast<uintptr_t>(m.shared.back().data());
    auto* const aligned = reinterpret_cast<uint8_t*>((at + 1023) / 1024 * 1024);
    std::fill_n(aligned, l.shared_bytes, uint8_t{0xCD});
    m.blocks.push_back(
        std::make_unique<Block>(Block{aligned, b, l.blocks, l.threads, b % l.cluster, {}}));
  }
  for (uint32_t b{0}; b < l.blocks; ++b) {
    for (uint32_t c{0}; c < l.cluster; ++c) {
      m.blocks[first + b]->cluster.push_back(m.blocks[first + b / l.cluster * l.cluster + c].get());
    }
    for (uint32_t t{0}; t < l.threads; ++t) {
      if (t % 32 == 0) m.warps.push_back(std::make_unique<Warp>());
      auto f = std::make_unique<Fiber>();
      f->block = m.blocks[first + b].get();
      f->thread = t;
      f->warp = m.warps.back().get();
      f->body = &l.body;
      prepare(*f);
      m.fibers.push_back(std::move(f));
    }
  }
}

std::string who_waits() {
  std::map<std::string, int32_t> waits;
  for (const auto& f : machine->fibers) {
    if (f->ended) continue;
    ++waits["block " + std::to_string(f->block->index) + " warp " + std::to_string(f->thread / 32) +
            ": " + f->what];
  }
  std::string text;
  for (const auto& [wait, lanes] : waits) {
    text += "\n  " + wait + " (" + std::to_string(lanes) + " lanes)";
  }
  return text;
}

/// One of the pending copies, any of them.
bool do_one(std::vector<std::function<void()>>* copies) {
  if (copies->empty()) return false;
  const size_t i{machine->dice() % copies->size()};
  std::swap((*copies)[i], copies->back());
  const std::function<void()> what{std::move(copies->back())};
  copies->pop_back();
  what();
  return true;
}
bool do_async() { return do_one(&machine->async); }

void resume(Fiber& f) {
  machine->current = &f;
  f.ready = nullptr;
  swapcontext(&machine->main, &f.context);
  machine->current = nullptr;
  if (f.error) std::rethrow_exception(f.error);
}

}  // namespace

void run(const std::vector<Launch>& launches, uint64_t seed) {
  Machine m;
  m.dice.seed(seed);
  machine = &m;
  for (const Launch& l : launches) make_fibers(l);
  const auto free_stacks = [&m] {
    for (const auto& f : m.fibers) munmap(f->stack, kStackBytes);
    machine = nullptr;
  };
  try {
    for (;;) {
      bool moved{false};
      bool any{false};
      const size_t shift{m.dice() % m.fibers.size()};
      const bool hasty{m.dice() % 8 == 0};  // some threads are left out of most rounds
      for (size_t i{0}; i < m.fibers.size(); ++i) {
        Fiber& f{*m.fibers[(i + shift) % m.fibers.size()]};
        if (f.ended) continue;
        any = true;
        if (f.ready != nullptr && !(*f.ready)()) continue;
        moved = true;
        if (!hasty && m.dice() % 4 == 0) continue;
        resume(f);
      }
      for (uint64_t n{m.dice() % 8}; n > 0 && do_async(); --n) moved = true;
      if (m.dice() % 48 == 0 && do_one(&m.slow)) moved = true;
      if (!any) break;
      if (!moved && !do_async() && !do_one(&m.slow)) {
        throw std::runtime_error{"emulator: nobody can go on" + who_waits()};
      }
    }
    while (do_async() || do_one(&m.slow)) {
    }
  } catch (...) {
    free_stacks();
    throw;
  }
  free_stacks();
}

Block& block() { return *machine->current->block; }
Index thread_index() { return {machine->current->thread}; }

void wait_until(const char* what, const std::function<bool()>& ready) {
  Fiber& f{*machine->current};
  if (ready()) return;
  f.what = what;
  f.ready = &ready;
  swapcontext(&f.context, &machine->main);
}

void yield() {
  Fiber& f{*machine->current};
  f.what = "poll";
  swapcontext(&f.context, &machine->main);
}

const std::vector<uint64_t>& exchange(uint64_t value) {
  Fiber& f{*machine->current};
  Warp& w{*f.warp};
  w.in[f.thread % 32] = value;
  const uint64_t round{w.round};
  if (++w.here == 32) {
    w.out = w.in;
    w.here = 0;
    ++w.round;
  } else {
    wait_until("the lanes of its warp", [&w, round] { return w.round != round; });
  }
  return w.out;
}

void meet(int32_t id, uint32_t count, bool cluster) {
  const Block& b{block()};
  const void* const place{cluster ? b.cluster[0] : &b};
  Barrier& barrier{machine->barriers[{place, cluster ? -1 : id}]};
  const uint64_t round{barrier.round};
  if (++barrier.here == count) {
    barrier.here = 0;
    ++barrier.round;
    return;
  }
  wait_until(cluster ? "the cluster" : "the block", [&] { return barrier.round != round; });
}

void later(std::function<void()> what) {
  Machine& m{*machine};
  (m.dice() % 16 == 0 ? m.slow : m.async).push_back(std::move(what));
}
int32_t& pending_stores() { return machine->current->pending_stores; }

}  // namespace emulator
