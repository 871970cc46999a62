// Which task comes before which, and whether memory is reused only in that order. Part of check.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan/access.h"

namespace monomoe::check {

/// What a check found, in sentences. Stops counting early: one mistake breaks many things.
class Violations {
 public:
  static constexpr size_t kMax{16};
  void add(std::string sentence) {
    if (!full()) list_.push_back(std::move(sentence));
  }
  [[nodiscard]] bool full() const { return list_.size() >= kMax; }
  [[nodiscard]] const std::vector<std::string>& list() const { return list_; }

 private:
  std::vector<std::string> list_;
};

/// Many sets of nodes (tasks) of one size. A set is named by its number.
class NodeSets {
 public:
  NodeSets(int32_t num_nodes, int32_t num_sets)
      : words_{static_cast<size_t>(num_nodes) / 64 + 1},
        bits_(words_ * static_cast<size_t>(num_sets)) {}

  /// A new empty set.
  int32_t add() {
    bits_.resize(bits_.size() + words_);
    return static_cast<int32_t>(bits_.size() / words_) - 1;
  }
  void clear(int32_t set) {
    for (size_t i{0}; i < words_; ++i) at(set)[i] = 0;
  }
  void insert(int32_t set, int32_t node) { word_of(set, node) |= mask_of(node); }
  void insert_all(int32_t set, int32_t from) {
    uint64_t* const to{at(set)};
    const uint64_t* const src{at(from)};
    for (size_t i{0}; i < words_; ++i) to[i] |= src[i];
  }
  /// The first node of `set`; -1: it is empty.
  [[nodiscard]] int32_t first(int32_t set) const {
    for (size_t i{0}; i < words_; ++i) {
      if (at(set)[i] != 0) return node_of(i, at(set)[i]);
    }
    return -1;
  }
  /// The first node of `set` that `in` lacks; -1: there is none. (A node has itself.)
  [[nodiscard]] int32_t missing(int32_t set, int32_t in, int32_t self) const {
    for (size_t i{0}; i < words_; ++i) {
      uint64_t lacks{at(set)[i] & ~at(in)[i]};
      if (static_cast<size_t>(self) / 64 == i) lacks &= ~mask_of(self);
      if (lacks != 0) return node_of(i, lacks);
    }
    return -1;
  }

 private:
  [[nodiscard]] const uint64_t* at(int32_t set) const {
    return bits_.data() + words_ * static_cast<size_t>(set);
  }
  uint64_t* at(int32_t set) { return bits_.data() + words_ * static_cast<size_t>(set); }
  uint64_t& word_of(int32_t set, int32_t node) { return at(set)[static_cast<size_t>(node) / 64]; }
  static int32_t node_of(size_t word, uint64_t bits) {
    return static_cast<int32_t>(word) * 64 + std::countr_zero(bits);
  }
  static uint64_t mask_of(int32_t node) {
    return uint64_t{1} << (static_cast<uint32_t>(node) % 64);
  }

  size_t words_;
  std::vector<uint64_t> bits_;
};

/// All memory. Set number n of `sets` holds the ancestors of node n: what surely came before it.
///
/// A read must come after all writes of its version; a write after everything that touched older
/// versions. Both are asked of ancestors, so the answer holds for every order of execution.
class Memory {
 public:
  using Describe = std::function<std::string(int32_t node)>;

  Memory(NodeSets& sets, Violations& out, Describe describe)
      : sets_{sets}, out_{out}, describe_{std::move(describe)} {}

  void access(int32_t node, const Access& a) {
    const auto [it, is_new] = cells_.try_emplace(key_of(a.place));
    Cell& c{it->second};
    if (is_new) c = {a.version, sets_.add(), sets_.add(), sets_.add()};
    if (a.version < c.version) {
      complain(node, a, "after newer contents from", any_of(c));
      return;
    }
    if (a.write) {
      write(node, a, c);
    } else {
      read(node, a, c);
    }
  }

 private:
  /// The newest version of a place, and who touched it.
  struct Cell {
    int64_t version{0};
    int32_t writers{0};  // sets
    int32_t readers{0};
    int32_t older{0};  // who touched older versions
  };

  void write(int32_t node, const Access& a, Cell& c) {
    if (a.version > c.version) {
      c.version = a.version;
      for (const int32_t set : {c.writers, c.readers}) {
        sets_.insert_all(c.older, set);
        sets_.clear(set);
      }
    }
    const int32_t early{sets_.missing(c.older, node, node)};
    if (early >= 0) complain(node, a, "without waiting for", early);
    if (sets_.first(c.readers) >= 0) complain(node, a, "but it was read before by", any_of(c));
    if (is_written_once(a.place) && sets_.first(c.writers) >= 0) {
      complain(node, a, "a second time, after", any_of(c));
    }
    sets_.insert(c.writers, node);
  }

  void read(int32_t node, const Access& a, const Cell& c) {
    if (a.version > c.version || sets_.first(c.writers) < 0) {
      complain(node, a, "but nobody has written it", -1);
    } else {
      const int32_t late{sets_.missing(c.writers, node, node)};
      if (late >= 0) complain(node, a, "without waiting for its writer", late);
    }
    sets_.insert(c.readers, node);
  }

  /// A reader of the cell, else a writer.
  int32_t any_of(const Cell& c) {
    const int32_t reader{sets_.first(c.readers)};
    return reader >= 0 ? reader : sets_.first(c.writers);
  }

  void complain(int32_t node, const Access& a, const char* how, int32_t other) {
    std::string s{describe_(node) + (a.write ? " writes " : " reads ") + name_of(a.place) + "[" +
                  std::to_string(a.place.key) + "] of rank " + std::to_string(a.place.rank) + " " +
                  how};
    if (other >= 0) s += " " + describe_(other);
    out_.add(std::move(s));
  }

  static uint64_t key_of(const Place& p) {
    return (static_cast<uint64_t>(p.key) * kNumPlaces + static_cast<uint64_t>(p.region)) *
               kMaxRanks +
           static_cast<uint64_t>(p.rank);
  }

  NodeSets& sets_;
  Violations& out_;
  Describe describe_;
  std::unordered_map<uint64_t, Cell> cells_;
};

}  // namespace monomoe::check
