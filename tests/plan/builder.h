// Short words to build sequences of launches for check.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plan/check.h"
#include "plan/tables.h"

namespace monomoe::plan_tests {

/// A layer, its routing and its knobs: what one forward and its backwards have in common.
struct Layer {
  Routing routing{};
  TileShape tile{make_tile(2, 2, 1)};
  int32_t hidden{3};
  int32_t inter{2};
  int32_t shared{0};
  bool score{false};
  Knobs knobs{};
  Wanted wanted{true, true, true, true, true, true};
  bool chain_shared{false};
};

/// Launches of layers on one group. Owns the tables that the plans point to.
class Sequence {
 public:
  explicit Sequence(uint32_t epoch) : epoch_{epoch} {}

  /// Returns the context, for `backward`.
  int32_t forward(const Layer& layer) {
    add(layer, layer.knobs, num_contexts_, false);
    return num_contexts_++;
  }
  void backward(const Layer& layer, int32_t context) { add(layer, layer.knobs, context, true); }
  /// Backward with its own workers, ring and chunks; what was saved stays.
  void backward(const Layer& layer, int32_t context, int32_t workers, int32_t ring) {
    Knobs k{layer.knobs};
    k.workers = workers;
    k.ring_tiles = ring;
    k.piece_tiles = std::max(1, ring / 2);
    add(layer, k, context, true);
  }
  [[nodiscard]] const std::vector<Launch>& launches() const { return launches_; }
  std::vector<Launch>& launches() { return launches_; }

 private:
  using Words = std::vector<std::vector<int32_t>>;

  void add(const Layer& layer, const Knobs& knobs, int32_t context, bool backward) {
    const auto tables = std::make_shared<Words>(make_tables(layer.routing, layer.tile));
    tables_.push_back(tables);
    Launch launch{{}, context};
    for (int32_t rank{0}; rank < layer.routing.ranks(); ++rank) {
      Plan p{};
      p.dims = dims_of(layer.routing, rank);
      p.dims.hidden = layer.hidden;
      p.dims.inter = layer.inter;
      p.dims.shared = layer.shared;
      p.dims.score = layer.score;
      p.tile = layer.tile;
      p.knobs = knobs;
      p.wanted = layer.wanted;
      p.tables = view_tables((*tables)[static_cast<size_t>(rank)].data(),
                             table_layout(p.dims, p.tile, layer.routing.group_tokens()), p.dims);
      p.epoch = epoch_;
      p.backward = backward;
      p.chain_shared = layer.chain_shared;
      launch.plans.push_back(p);
    }
    launches_.push_back(std::move(launch));
    ++epoch_;
  }

  uint32_t epoch_;
  int32_t num_contexts_{0};
  std::vector<std::shared_ptr<Words>> tables_;
  std::vector<Launch> launches_;
};

/// A layer in one line, for failures: everything that is needed to build it again.
inline std::string describe(const Layer& l) {
  const auto list = [](const std::vector<int32_t>& v) {
    std::string s{"{"};
    for (const int32_t i : v) s += (s.size() > 1 ? "," : "") + std::to_string(i);
    return s + "}";
  };
  const auto flag = [](bool set, const char* name) {
    return set ? std::string{" "} + name : std::string{};
  };
  const Knobs& k{l.knobs};
  return "tokens " + list(l.routing.tokens) + " E" + std::to_string(l.routing.experts) + " K" +
         std::to_string(l.routing.top_k) + " ids " + list(l.routing.ids) + " tile " +
         std::to_string(l.tile.rows) + "x" + std::to_string(l.tile.cols) + "/" +
         std::to_string(l.tile.sum_tokens) + "/" + std::to_string(l.tile.stage_tokens) + " H" +
         std::to_string(l.hidden) + " I" + std::to_string(l.inter) + " Is" +
         std::to_string(l.shared) + flag(l.score, "score") + " workers " +
         std::to_string(k.workers) + " ring " + std::to_string(k.ring_tiles) + " piece " +
         std::to_string(k.piece_tiles) + " save " + std::to_string(k.save_tiles) +
         flag(k.save_x, "save_x") + flag(k.save_shared, "save_shared") +
         flag(l.wanted.gate_up, "gate_up") + flag(l.wanted.down, "down") +
         flag(l.wanted.shared_gate_up, "shared_gate_up") +
         flag(l.wanted.shared_down, "shared_down") + flag(l.wanted.score, "d_score") +
         flag(l.wanted.empty_experts, "empty_experts") + flag(l.chain_shared, "chain");
}

inline std::string join(const std::vector<std::string>& lines) {
  std::string s;
  for (const std::string& line : lines) s += "\n  " + line;
  return s;
}

/// Seeded choices. Not std::uniform_int_distribution: that differs between libraries.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_{seed} {}
  /// One of begin .. end - 1.
  int32_t roll(int32_t begin, int32_t end) {
    return begin + static_cast<int32_t>(engine_() % static_cast<uint64_t>(end - begin));
  }
  bool coin() { return roll(0, 2) == 1; }
  template <size_t N>
  int32_t one_of(const int32_t (&values)[N]) {
    return values[roll(0, static_cast<int32_t>(N))];
  }

 private:
  std::mt19937_64 engine_;
};

/// `total` tokens on `ranks` ranks, in any way, zero included.
inline std::vector<int32_t> random_split(int32_t total, int32_t ranks, Dice& dice) {
  std::vector<int32_t> tokens(static_cast<size_t>(ranks), 0);
  for (int32_t t{0}; t < total; ++t) ++tokens[static_cast<size_t>(dice.roll(0, ranks))];
  return tokens;
}

/// Everything but the ids, at random among what is legal.
inline Layer random_layer(Dice& dice) {
  Layer l{};
  l.hidden = dice.one_of({1, 2, 3, 5});
  l.inter = dice.one_of({1, 2, 3});
  l.shared = dice.one_of({0, 0, 1, 3});
  l.score = l.shared > 0 && dice.coin();
  l.knobs.workers = dice.roll(1, 9);
  l.knobs.ring_tiles = dice.roll(2, 5);
  l.knobs.piece_tiles = dice.roll(1, l.knobs.ring_tiles / 2 + 1);
  l.knobs.save_tiles = dice.one_of({0, 1, 2, 100});
  l.knobs.save_x = dice.coin();
  l.knobs.save_shared = dice.coin();
  if (dice.coin()) {  // else all
    l.wanted = {dice.coin(), dice.coin(), dice.coin(), dice.coin(), dice.coin(), dice.coin()};
  }
  l.wanted.shared_gate_up = l.wanted.shared_gate_up && l.shared > 0;
  l.wanted.shared_down = l.wanted.shared_down && l.shared > 0;
  l.wanted.score = l.wanted.score && l.score;
  return l;
}

/// How a group's calls start follows from its kind: a chain exists only in a local group.
inline Start start_of(const Layer& l) { return l.chain_shared ? Start::kJoined : Start::kAlone; }

}  // namespace monomoe::plan_tests
