// Do the three lines of a plan hold exactly the tasks that they must hold? Part of check.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "plan/check_memory.h"
#include "plan/order.h"

namespace monomoe {
/// One launch of all ranks: a plan each, all of one epoch.
struct Launch {
  std::vector<Plan> plans;
  int32_t context{0};  // saved state: a backward names the context of its forward
};

namespace check {

using Lines = std::array<std::vector<Task>, kNumLines>;

inline std::string describe(const Task& t) {
  std::string s{name_of(t.kind)};
  const bool chunked{t.kind == Kind::kWgradGateUp || t.kind == Kind::kWgradDown};
  s += "(expert " + std::to_string(t.expert) + ", row " + std::to_string(t.row) + ", col " +
       std::to_string(t.col);
  if (chunked) {
    s += ", tiles " + std::to_string(t.chunk.begin) + ".." + std::to_string(t.chunk.end) +
         ", pass " + std::to_string(t.pass);
  }
  return s + ")";
}

inline std::string describe(const CounterRef& c) {
  return std::string{name_of(c.id)} + "[" + std::to_string(c.index) + "] of rank " +
         std::to_string(c.rank);
}

/// A task as comparable numbers; only fields that mean something for its kind.
using TaskKey = std::array<int32_t, 9>;

inline TaskKey key_of(const Task& t) {
  TaskKey k{static_cast<int32_t>(t.kind), t.expert, t.row, t.col, 0, 0, -1, 1, 1};
  if (t.kind == Kind::kWgradGateUp || t.kind == Kind::kWgradDown) {
    k[4] = t.chunk.begin;
    k[5] = t.chunk.end;
    k[6] = t.pass;
    k[7] = t.first ? 1 : 0;
    k[8] = t.last ? 1 : 0;
  }
  return k;
}

/// The tasks that a plan must have, counted out plainly from dimensions and rows. Deliberately
/// shares nothing with order.h.
class Expected {
 public:
  explicit Expected(const Plan& p) : p_{p} {
    tokens();
    for (int32_t e{0}; e < p.dims.local_experts(); ++e) expert(e);
    if (p.dims.shared > 0) shared();
  }
  std::vector<TaskKey>& of(Line l) { return keys_[static_cast<size_t>(l)]; }

 private:
  static int32_t steps(int32_t size, int32_t step) {
    int32_t n{0};
    for (int32_t at{0}; at < size; at += step) ++n;
    return n;
  }
  void add(Line l, Kind kind, int32_t e, int32_t row, int32_t col) {
    of(l).push_back(key_of(Task{kind, e, row, col}));
  }
  void grid(Kind kind, int32_t e, int32_t rows, int32_t cols) {
    for (int32_t r{0}; r < rows; ++r) {
      for (int32_t c{0}; c < cols; ++c) add(Line::kMain, kind, e, r, c);
    }
  }
  void row(Kind kind, int32_t e, int32_t n, int32_t cols) {
    for (int32_t c{0}; c < cols; ++c) add(Line::kMain, kind, e, n, c);
  }

  void tokens() {
    const int32_t t{p_.dims.tokens};
    for (int32_t c{0}; c < steps(t, p_.tile.stage_tokens); ++c) {
      add(Line::kMove, Kind::kStage, 0, c, 0);
    }
    for (int32_t b{0}; b < steps(t, p_.tile.sum_tokens); ++b) {
      add(Line::kCombine, Kind::kCombine, 0, b, 0);
    }
  }

  void expert(int32_t e) {
    const int32_t begin{p_.tables.tile_start[e]};
    const int32_t end{p_.tables.tile_start[e + 1]};
    int32_t rows{expert_rows(p_.tables, e)};
    for (int32_t n{begin}; n < end; ++n, rows -= p_.tile.rows) {
      tile(e, n, std::min(rows, p_.tile.rows));
    }
    if (!p_.backward) return;
    if (begin == end && p_.wanted.empty_experts) wgrads(Chunk{e, begin, end}, -1, true, true);
    const bool chunked{end - begin > p_.knobs.piece_tiles};
    for (int32_t n{begin}; n < end; n += p_.knobs.piece_tiles) {
      const int32_t stop{std::min(n + p_.knobs.piece_tiles, end)};
      wgrads(Chunk{e, n, stop}, chunked ? passes_++ : -1, n == begin, stop == end);
    }
  }

  void tile(int32_t e, int32_t n, int32_t rows) {
    int32_t written{rows};  // and zero rows up to the alignment
    while (written % p_.tile.align != 0) ++written;
    for (int32_t part{0}; part * p_.tile.move_rows < written; ++part) {
      add(Line::kMove, Kind::kDispatch, e, n, part);
    }
    const int32_t hidden{steps(p_.dims.hidden, p_.tile.cols)};
    const int32_t gate_up{steps(p_.dims.inter, p_.tile.cols / 2)};
    if (!p_.backward) {
      row(Kind::kGateUp, e, n, gate_up);
      row(Kind::kDown, e, n, hidden);
      return;
    }
    if (n >= p_.knobs.save_tiles) row(Kind::kGateUp, e, n, gate_up);
    row(Kind::kDgradDown, e, n, steps(p_.dims.inter, p_.tile.cols));
    row(Kind::kDgradGateUp, e, n, hidden);
  }

  void wgrads(const Chunk& c, int32_t pass, bool first, bool last) {
    const int32_t inter_rows{steps(p_.dims.inter, p_.tile.rows)};
    const auto tiles = [&](Kind kind, int32_t rows, int32_t cols) {
      for (int32_t i{0}; i < rows * cols; ++i) {
        of(Line::kMain)
            .push_back(key_of(Task{kind, c.expert, i / cols, i % cols, c, pass, first, last}));
      }
    };
    if (p_.wanted.gate_up) {
      tiles(Kind::kWgradGateUp, 2 * inter_rows, steps(p_.dims.hidden, p_.tile.cols));
    }
    if (p_.wanted.down) {
      tiles(Kind::kWgradDown, steps(p_.dims.hidden, p_.tile.rows),
            steps(p_.dims.inter, p_.tile.cols));
    }
  }

  void shared() {
    const int32_t m{steps(p_.dims.tokens, p_.tile.rows)};
    const int32_t hidden{steps(p_.dims.hidden, p_.tile.cols)};
    const int32_t inter{steps(p_.dims.shared, p_.tile.cols)};
    if (!p_.backward || !p_.knobs.save_shared) {
      grid(Kind::kSharedGateUp, 0, m, steps(p_.dims.shared, p_.tile.cols / 2));
    }
    if (!p_.backward) {
      if (p_.dims.score) grid(Kind::kSharedScore, 0, m, 1);
      grid(Kind::kSharedDown, 0, m, hidden);
      return;
    }
    grid(Kind::kSharedDgradDown, 0, m, inter);
    if (p_.dims.score) grid(Kind::kSharedDscore, 0, m, 1);
    grid(Kind::kSharedDgradGateUp, 0, m, hidden);
    const int32_t inter_rows{steps(p_.dims.shared, p_.tile.rows)};
    if (p_.wanted.shared_gate_up) grid(Kind::kSharedWgradGateUp, 0, 2 * inter_rows, hidden);
    if (p_.wanted.shared_down) {
      grid(Kind::kSharedWgradDown, 0, steps(p_.dims.hidden, p_.tile.rows), inter);
    }
    if (p_.wanted.score) grid(Kind::kSharedWgradScore, 0, 1, hidden);
  }

  const Plan& p_;
  int32_t passes_{0};
  std::array<std::vector<TaskKey>, kNumLines> keys_;
};

inline Task task_of(const TaskKey& k) {
  return {static_cast<Kind>(k[0]), k[1], k[2],      k[3],
          Chunk{k[1], k[4], k[5]}, k[6], k[7] != 0, k[8] != 0};
}

/// Property 1 for one plan.
class TaskCheck {
 public:
  TaskCheck(const Plan& p, const Lines& lines, std::string who, Violations& out)
      : p_{p}, lines_{lines}, who_{std::move(who)}, out_{out} {
    knobs();
    Expected expected{p};
    for (const Line l : {Line::kMain, Line::kMove, Line::kCombine}) {
      each_once(l, expected.of(l));
      decodes(l);
    }
    ring();
  }

 private:
  const std::vector<Task>& line(Line l) const { return lines_[static_cast<size_t>(l)]; }
  void complain(const std::string& what) { out_.add(who_ + what); }

  void knobs() {
    const Knobs& k{p_.knobs};
    if (k.ring_tiles < 2) complain("a ring of at least 2 tiles wanted");
    if (k.piece_tiles < 1 || k.piece_tiles > k.ring_tiles / 2) {
      complain("chunks of 1 to half the ring wanted, " + std::to_string(k.piece_tiles) + " of " +
               std::to_string(k.ring_tiles) + " found");
    }
  }

  void each_once(Line l, std::vector<TaskKey>& wanted) {
    std::vector<TaskKey> found;
    found.reserve(wanted.size());
    for (const Task& t : line(l)) found.push_back(key_of(t));
    std::sort(found.begin(), found.end());
    std::sort(wanted.begin(), wanted.end());
    if (found == wanted) return;
    std::vector<TaskKey> diff;
    std::set_difference(wanted.begin(), wanted.end(), found.begin(), found.end(),
                        std::back_inserter(diff));
    for (const TaskKey& k : diff) complain("missing: " + describe(task_of(k)));
    diff.clear();
    std::set_difference(found.begin(), found.end(), wanted.begin(), wanted.end(),
                        std::back_inserter(diff));
    for (const TaskKey& k : diff) complain("not wanted, or twice: " + describe(task_of(k)));
  }

  void decodes(Line l) {
    Task t{};
    int32_t ticket{0};
    for (const Task& want : line(l)) {
      if (!decode(p_, l, ticket, &t) || key_of(t) != key_of(want)) {
        complain("decode of ticket " + std::to_string(ticket) + " differs: " + describe(want));
        return;
      }
      ++ticket;
    }
    if (decode(p_, l, ticket, &t)) complain("decode finds a ticket behind the end");
  }

  void ring() {
    const auto tiles = static_cast<size_t>(p_.tables.num_tiles());
    const std::vector<Task>& main{line(Line::kMain)};
    std::vector<size_t> first(tiles, main.size());
    std::vector<size_t> last(tiles, 0);
    for (size_t i{0}; i < main.size(); ++i) {
      const auto [begin, end] = tiles_of(main[i]);
      for (size_t n{begin}; n < end && n < tiles; ++n) {
        first[n] = std::min(first[n], i);
        last[n] = i;
      }
    }
    const auto ring = static_cast<size_t>(p_.knobs.ring_tiles);
    for (size_t n{0}; n + ring < tiles; ++n) {
      if (last[n] < first[n + ring]) continue;
      complain("the order outruns the ring: " + describe(main[last[n]]) + " comes after " +
               describe(main[first[n + ring]]));
    }
  }

  static std::pair<size_t, size_t> tiles_of(const Task& t) {
    switch (t.kind) {
      case Kind::kGateUp:
      case Kind::kDown:
      case Kind::kDgradDown:
      case Kind::kDgradGateUp:
        return {static_cast<size_t>(t.row), static_cast<size_t>(t.row) + 1};
      case Kind::kWgradGateUp:
      case Kind::kWgradDown:
        return {static_cast<size_t>(t.chunk.begin), static_cast<size_t>(t.chunk.end)};
      default:
        return {0, 0};
    }
  }

  const Plan& p_;
  const Lines& lines_;
  std::string who_;
  Violations& out_;
};

}  // namespace check

}  // namespace monomoe
