// The order of tasks: three lines of tickets, each a pure function ticket -> task.
//
// Main line: [shared expert's head] [routed segments, merged by key] [shared expert's tail].
// A routed segment is one kind of one chunk. Chunks follow each other in row order; kinds of a
// later stream follow those of an earlier one by a lag. The key is a virtual time in row tiles:
//   first stream:  key(c) = c.begin
//   stream s > 0:  key(c) = the first chunk border >= c.end + lag_s, or the last one
//                  <= c.begin + ring if that is earlier; not before c.end
// Order: by (key, stream), the first stream last among equal keys. So a chunk's kinds come in
// stream order, and everything that touches ring slots of chunk c comes before the first task of a
// chunk that reuses one of them (chunks have at most half the ring, hence c + 1 always fits).
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "plan/graph.h"

namespace monomoe {

/// One kind walked over all chunks.
struct Stream {
  Kind kind{Kind::kGateUp};
  int32_t m_tiles{0};  // weight gradients: row tiles of one, for each chunk; 0: those of the chunk
  int32_t n_tiles{0};  // column tiles; 0: nothing to do
  int32_t from_tile{0};  // row tiles below are skipped
  int32_t lag_tiles{0};
};

constexpr int32_t kMaxStreams{5};

struct Streams {
  Stream at[kMaxStreams];
  int32_t count{0};
};

/// A stream follows the one before by so many waves of workers: tickets are taken some tasks ahead,
/// and who holds one too early waits for it with all that comes behind.
constexpr int32_t kLagWaves{4};

/// In row tiles of `per_tile` tasks each.
template <class P>
MONOMOE_HD int32_t lag_of(const P& p, int32_t per_tile) {
  return ceil_div(p.knobs.workers * kLagWaves, per_tile);
}

/// The streams of a launch.
template <class P>
MONOMOE_HD Streams streams_of(const P& p) {
  Streams s{};
  if (!p.backward) {
    s.count = 2;
    s.at[0] = {Kind::kGateUp, 0, p.gu_tiles(), 0, 0};
    s.at[1] = {Kind::kDown, 0, p.hidden_tiles(), 0, lag_of(p, p.gu_tiles())};
    return s;
  }
  const bool recomputes{p.knobs.save_tiles < p.tables.num_tiles()};
  const int32_t lag_dd{recomputes ? lag_of(p, p.gu_tiles()) : 0};
  const int32_t lag_dg{lag_dd + lag_of(p, p.inter_tiles())};
  s.count = 5;
  const int32_t n_gate_up{p.wanted.gate_up ? p.hidden_tiles() : 0};
  const int32_t n_down{p.wanted.down ? p.inter_tiles() : 0};
  s.at[0] = {Kind::kGateUp, 0, p.gu_tiles(), p.knobs.save_tiles, 0};
  s.at[1] = {Kind::kDgradDown, 0, p.inter_tiles(), 0, lag_dd};
  s.at[2] = {Kind::kDgradGateUp, 0, p.hidden_tiles(), 0, lag_dg};
  s.at[3] = {Kind::kWgradGateUp, p.wgrad_gate_up_rows(), n_gate_up, 0, lag_dg};
  s.at[4] = {Kind::kWgradDown, p.wgrad_down_rows(), n_down, 0, lag_dg};
  return s;
}

/// Walks the chunks of a rank in row order, experts without rows included as empty chunks.
template <class P>
MONOMOE_HD Chunk first_chunk(const P& p) {
  Chunk c{0, 0, 0};
  if (p.tables.num_experts > 0) c.end = min_of(p.tables.tile_start[1], p.knobs.piece_tiles);
  return c;
}
template <class P>
MONOMOE_HD bool is_end(const P& p, const Chunk& c) {
  return c.expert >= p.tables.num_experts;
}
template <class P>
MONOMOE_HD Chunk next_chunk(const P& p, const Chunk& c) {
  if (c.end < p.tables.tile_start[c.expert + 1]) {
    const int32_t end{min_of(p.tables.tile_start[c.expert + 1], c.end + p.knobs.piece_tiles)};
    return {c.expert, c.end, end};
  }
  const int32_t e{c.expert + 1};
  if (e >= p.tables.num_experts) return {e, c.end, c.end};
  return {e, c.end, min_of(p.tables.tile_start[e + 1], c.end + p.knobs.piece_tiles)};
}

/// Row tiles of a stream's grid over a chunk.
template <class P>
MONOMOE_HD int32_t m_tiles_of(const P& p, const Stream& s, const Chunk& c) {
  if (s.m_tiles > 0) return c.begin < c.end || p.wanted.empty_experts ? s.m_tiles : 0;
  return max_of(0, c.end - max_of(c.begin, s.from_tile));
}

/// Starts with the tiles whose rows come from home rank + 1, so that owners don't all pull from one
/// home at once: how far the row tiles of a chunk are rotated.
template <class P>
MONOMOE_HD int32_t rotation(const P& p, const Chunk& c) {
  const Dims& d{p.dims};
  if (d.rank + 1 >= d.ranks) return 0;
  const int32_t row{p.tables.home_start[c.expert * (d.ranks + 1) + d.rank + 1]};
  const int32_t n{p.tables.tile_start[c.expert] + row / p.tile.rows};
  return n > c.begin && n < c.end ? n - c.begin : 0;
}

/// Position `i` of a chunk's rotated row tiles -> row tile.
MONOMOE_HD constexpr int32_t rotated_tile(const Chunk& c, int32_t shift, int32_t i) {
  const int32_t size{c.end - c.begin};
  const int32_t at{i + shift};
  return c.begin + (at < size ? at : at - size);
}

/// A run of tickets of the main line: one kind over a chunk, or over the tokens of the shared
/// expert. A ticket is one tile, or two that share an operand (tile.h) for a pair of blocks.
///
/// Most workers pass most segments by, so that only what tickets need is known here; the rest, with
/// its divisions, is found when one is decoded.
struct Segment {
  Kind kind{Kind::kGateUp};
  int32_t begin{0};  // tickets
  int32_t end{0};
  int32_t per_ticket{1};
  int32_t m_tiles{0};  // the grid of tiles
  int32_t n_tiles{0};
  Chunk chunk{};           // routed kinds
  int32_t first_tile{-1};  // routed kinds by row tile: the grid's first row
  int32_t pass{-1};        // wgrads: as in Task

  [[nodiscard]] MONOMOE_HD int32_t tasks_of(int32_t ticket) const {
    return min_of(per_ticket, m_tiles * n_tiles - (ticket - begin) * per_ticket);
  }

  /// Task `member` of a ticket. Field by field: kernels decode into shared memory.
  template <class P>
  MONOMOE_HD void decode(const P& p, int32_t ticket, int32_t member, Task* out) const {
    const bool wgrad{kind == Kind::kWgradGateUp || kind == Kind::kWgradDown};
    const TilePos at{make_raster(m_tiles, n_tiles).at((ticket - begin) * per_ticket + member)};
    out->kind = kind;
    out->expert = chunk.expert;
    out->row = at.m;
    if (first_tile >= 0) {
      const Chunk rows{chunk.expert, first_tile, chunk.end};
      out->row = rotated_tile(rows, rotation(p, rows), at.m);
    }
    out->col = at.n;
    out->chunk = chunk;
    out->pass = pass;
    out->first = !wgrad || chunk.begin == p.tables.tile_start[chunk.expert];
    out->last = !wgrad || chunk.end == p.tables.tile_start[chunk.expert + 1];
  }
};

/// A block of tickets in front of or behind the routed segments.
struct SharedSegment {
  Kind kind;
  int32_t m_tiles;
  int32_t n_tiles;
};
constexpr int32_t kMaxSharedSegments{4};
struct SharedSegments {
  SharedSegment at[kMaxSharedSegments];
  int32_t count{0};
};

/// The shared expert needs no communication: its head hides the latency of the first rows, its
/// tail fills the time while the last rows arrive.
template <class P>
MONOMOE_HD SharedSegments shared_head(const P& p) {
  SharedSegments s{};
  const int32_t m{p.token_tiles()};
  if (m == 0) return s;
  if (!p.backward || p.recomputes_shared()) {
    s.at[s.count++] = {Kind::kSharedGateUp, m, p.shared_gu_tiles()};
  }
  if (!p.backward) {
    if (p.dims.score) s.at[s.count++] = {Kind::kSharedScore, m, 1};
    return s;
  }
  s.at[s.count++] = {Kind::kSharedDgradDown, m, p.shared_inter_tiles()};
  if (p.dims.score) s.at[s.count++] = {Kind::kSharedDscore, m, 1};
  s.at[s.count++] = {Kind::kSharedDgradGateUp, m, p.hidden_tiles()};
  return s;
}

template <class P>
MONOMOE_HD SharedSegments shared_tail(const P& p) {
  SharedSegments s{};
  if (p.dims.shared == 0) return s;
  if (!p.backward) {
    if (p.token_tiles() > 0) {
      s.at[s.count++] = {Kind::kSharedDown, p.token_tiles(), p.hidden_tiles()};
    }
    return s;
  }
  // Also without tokens: the gradient is zero then and has to be written, and the chain to go on.
  if (p.wanted.shared_gate_up) {
    s.at[s.count++] = {Kind::kSharedWgradGateUp, 2 * row_tiles(p.dims.shared, p.tile),
                       p.hidden_tiles()};
  }
  if (p.wanted.shared_down) {
    s.at[s.count++] = {Kind::kSharedWgradDown, p.wgrad_down_rows(), p.shared_inter_tiles()};
  }
  if (p.wanted.score) s.at[s.count++] = {Kind::kSharedWgradScore, 1, p.hidden_tiles()};
  return s;
}

/// The first border of chunks at or behind a rising row tile, and the last one at or before it.
/// Row tiles must not fall from call to call.
class BorderCursor {
 public:
  BorderCursor() = default;
  template <class P>
  MONOMOE_HD explicit BorderCursor(const P& p) : chunk_{first_chunk(p)} {}

  template <class P>
  MONOMOE_HD int32_t at_or_behind(const P& p, int64_t tile) {
    while (chunk_.end < tile && !is_end(p, chunk_)) chunk_ = next_chunk(p, chunk_);
    return chunk_.end;
  }
  template <class P>
  MONOMOE_HD int32_t at_or_before(const P& p, int64_t tile) {
    while (chunk_.end <= tile && !is_end(p, chunk_)) chunk_ = next_chunk(p, chunk_);
    return chunk_.begin;
  }

 private:
  Chunk chunk_{};
};

/// The segments of the main line in order. A step costs a few comparisons: everything moves
/// forward only.
class SegmentCursor {
 public:
  SegmentCursor() = default;

  /// To the first segment; tickets hold one tile, or two. (Not a constructor: kernels keep the
  /// cursor in shared memory.)
  template <class P>
  MONOMOE_HD void start(const P& p, int32_t per_ticket) {
    per_ticket_ = per_ticket;
    streams_ = streams_of(p);
    part_ = Part::kHead;
    shared_ = shared_head(p);
    at_shared_ = 0;
    begin_ = 0;
    for (int32_t s{0}; s < streams_.count; ++s) {
      Lane& l{lanes_[s]};
      l = {first_chunk(p), 0, 0, BorderCursor{p}, BorderCursor{p}};
      set_key(p, s);
    }
  }

  /// The next segment with tickets. False: there is none.
  template <class P>
  MONOMOE_HD bool next(const P& p, Segment* out) {
    for (;;) {
      *out = Segment{};
      out->begin = begin_;
      out->per_ticket = per_ticket_;
      switch (part_) {
        case Part::kHead:
        case Part::kTail:
          if (at_shared_ < shared_.count) {
            const SharedSegment& s{shared_.at[at_shared_++]};
            out->kind = s.kind;
            out->m_tiles = s.m_tiles;
            out->n_tiles = s.n_tiles;
          } else {
            part_ = part_ == Part::kHead ? Part::kRouted : Part::kEnd;
          }
          break;
        case Part::kRouted:
          if (!next_routed(p, out)) {
            part_ = Part::kTail;
            shared_ = shared_tail(p);
            at_shared_ = 0;
          }
          break;
        case Part::kEnd:
          return false;
      }
      if (out->m_tiles * out->n_tiles > 0) break;
    }
    const int32_t tiles{out->m_tiles * out->n_tiles};
    begin_ += per_ticket_ == 1 ? tiles : ceil_div(tiles, 2);
    out->end = begin_;
    return true;
  }

 private:
  enum class Part : uint8_t { kHead, kRouted, kTail, kEnd };

  struct Lane {
    Chunk chunk{};
    int32_t key{0};
    int32_t passes{0};  // chunks of chunked experts so far
    BorderCursor lag;
    BorderCursor ring;
  };

  template <class P>
  MONOMOE_HD void set_key(const P& p, int32_t s) {
    Lane& l{lanes_[s]};
    const Chunk& c{l.chunk};
    l.key = c.begin;
    if (s == 0 || is_end(p, c)) return;
    // Up to the end of the chunk in which the lag ends (sums in 64 bits: a lag may be as large as
    // the number of workers), but not beyond the last border that the ring allows.
    int32_t key{c.end};
    const int32_t lag{streams_.at[s].lag_tiles};
    if (lag > 0) key = l.lag.at_or_behind(p, int64_t{c.end} + lag);
    const int64_t ring_end{int64_t{c.begin} + p.knobs.ring_tiles};
    if (ring_end < key) key = l.ring.at_or_before(p, ring_end);
    l.key = max_of(c.end, key);
  }

  template <class P>
  MONOMOE_HD bool next_routed(const P& p, Segment* out) {
    int32_t best{-1};
    MONOMOE_ROLLED
    for (int32_t s{1}; s <= streams_.count; ++s) {  // the first stream comes last among equals
      const int32_t lane{s < streams_.count ? s : 0};
      if (is_end(p, lanes_[lane].chunk)) continue;
      if (best < 0 || lanes_[lane].key < lanes_[best].key) best = lane;
    }
    if (best < 0) return false;
    const Stream& s{streams_.at[best]};
    Lane& l{lanes_[best]};
    const Chunk& c{l.chunk};
    out->kind = s.kind;
    out->m_tiles = m_tiles_of(p, s, c);
    out->n_tiles = s.n_tiles;
    out->chunk = c;
    if (s.m_tiles == 0) {
      out->first_tile = max_of(c.begin, s.from_tile);
    } else if (c.begin < c.end && is_chunked(p, c)) {
      out->pass = l.passes++;
    }
    l.chunk = next_chunk(p, c);
    set_key(p, best);
    return true;
  }

  Streams streams_{};
  SharedSegments shared_{};
  Lane lanes_[kMaxStreams];
  Part part_{Part::kHead};
  int32_t per_ticket_{1};
  int32_t at_shared_{0};
  int32_t begin_{0};
};

/// Decodes main-line tickets in rising order. decode_main(plan, ticket) is the pure function; a
/// cursor is its memory. `look_ahead` does in idle time what `seek` would do later.
class MainCursor {
 public:
  MainCursor() = default;
  template <class P>
  MONOMOE_HD explicit MainCursor(const P& p) {
    start(p);
  }

  template <class P>
  MONOMOE_HD void start(const P& p, int32_t per_ticket = 1) {
    walk_.start(p, per_ticket);
    first_ = 0;
    size_ = 0;
    ended_ = false;
  }

  /// False: the line has ended before `ticket`. Tickets must not fall from call to call.
  template <class P>
  MONOMOE_HD bool seek(const P& p, int32_t ticket, Task* out) {
    while (!knows(ticket)) {
      if (is_behind_end()) return false;
      look_ahead(p);
    }
    segment_of(ticket).decode(p, ticket, 0, out);
    return true;
  }

  /// Is the segment of `ticket` known? (Those before it are forgotten.)
  MONOMOE_HD bool knows(int32_t ticket) {
    for (; size_ > 0; --size_) {
      if (ticket < ahead_[first_].end) return true;
      first_ = (first_ + 1) % kAhead;
    }
    return false;
  }
  /// Then: how many of `n` tickets from this one on there are. All their segments must be known, or
  /// all that the line has: 0 until then.
  [[nodiscard]] MONOMOE_HD int32_t count(int32_t ticket, int32_t n) const {
    const int32_t known{ahead_[(first_ + size_ - 1) % kAhead].end - ticket};
    return known >= n ? n : ended_ ? known : 0;
  }
  /// Of a ticket that is known.
  [[nodiscard]] MONOMOE_HD const Segment& segment_of(int32_t ticket) const {
    int32_t i{first_};
    MONOMOE_ROLLED
    while (ticket >= ahead_[i].end) i = (i + 1) % kAhead;
    return ahead_[i];
  }

  /// Finds one more segment, if there is one and a place for it.
  template <class P>
  MONOMOE_HD void look_ahead(const P& p) {
    if (ended_ || size_ == kAhead) return;
    ended_ = !walk_.next(p, &ahead_[(first_ + size_) % kAhead]);
    if (!ended_) ++size_;
  }

  /// After knows(ticket) was false: there is no such ticket.
  [[nodiscard]] MONOMOE_HD bool is_behind_end() const { return ended_ && size_ == 0; }

  /// Segments known at a time; so many tickets in a row never lie in more.
  static constexpr int32_t kAhead{4};

 private:
  SegmentCursor walk_;
  Segment ahead_[kAhead];
  int32_t first_{0};
  int32_t size_{0};
  bool ended_{false};
};

/// The movers' line: all stage tasks, then dispatch in the order the first stream needs rows.
class MoveCursor {
 public:
  template <class P>
  MONOMOE_HD explicit MoveCursor(const P& p)
      : stages_{p.stage_chunks()}, chunk_{first_chunk(p)}, begin_{p.stage_chunks()} {
    count_chunk(p);
  }

  template <class P>
  MONOMOE_HD bool seek(const P& p, int32_t ticket, Task* out) {
    *out = Task{};
    if (ticket < stages_) {
      out->kind = Kind::kStage;
      out->row = ticket;
      return true;
    }
    while (!is_end(p, chunk_) && ticket >= begin_ + count_) {
      begin_ += count_;
      chunk_ = next_chunk(p, chunk_);
      count_chunk(p);
    }
    if (is_end(p, chunk_)) return false;
    // Only the expert's last tile may have fewer parts than the others; it can stand anywhere in
    // the rotated order.
    int32_t idx{ticket - begin_};
    const int32_t full{ceil_div(p.tile.rows, p.tile.move_rows)};
    const int32_t size{chunk_.end - chunk_.begin};
    int32_t i{idx / full};
    if (last_parts_ < full) {
      int32_t last_at{0};  // position of the chunk's last tile in the rotated order
      while (rotated_tile(chunk_, shift_, last_at) != chunk_.end - 1) ++last_at;
      if (idx >= last_at * full + last_parts_) {
        idx -= last_at * full + last_parts_;
        i = last_at + 1 + idx / full;
        idx = idx % full;
      } else {
        idx -= i * full;
      }
    } else {
      idx -= i * full;
    }
    out->kind = Kind::kDispatch;
    out->expert = chunk_.expert;
    out->chunk = chunk_;
    out->row = rotated_tile(chunk_, shift_, min_of(i, size - 1));
    out->col = idx;
    return true;
  }

 private:
  template <class P>
  MONOMOE_HD void count_chunk(const P& p) {
    count_ = 0;
    if (is_end(p, chunk_) || chunk_.begin == chunk_.end) return;
    shift_ = rotation(p, chunk_);
    last_parts_ = p.moves_of(p.rows_of(chunk_.expert, chunk_.end - 1));
    count_ =
        (chunk_.end - chunk_.begin - 1) * ceil_div(p.tile.rows, p.tile.move_rows) + last_parts_;
  }

  int32_t stages_;
  Chunk chunk_;
  int32_t begin_;
  int32_t count_{0};
  int32_t last_parts_{0};
  int32_t shift_{0};
};

/// The combine line: token blocks in order.
class CombineCursor {
 public:
  template <class P>
  MONOMOE_HD explicit CombineCursor(const P& /*p*/) {}
  template <class P>
  MONOMOE_HD bool seek(const P& p, int32_t ticket, Task* out) {
    *out = Task{};
    out->kind = Kind::kCombine;
    out->row = ticket;
    return ticket < p.token_blocks();
  }
};

/// All three, chosen by name.
class Cursor {
 public:
  template <class P>
  MONOMOE_HD explicit Cursor(const P& p) : main_{p}, move_{p}, combine_{p} {}
  template <class P>
  MONOMOE_HD bool seek(const P& p, Line line, int32_t ticket, Task* out) {
    switch (line) {
      case Line::kMain:
        return main_.seek(p, ticket, out);
      case Line::kMove:
        return move_.seek(p, ticket, out);
      default:
        return combine_.seek(p, ticket, out);
    }
  }

 private:
  MainCursor main_;
  MoveCursor move_;
  CombineCursor combine_;
};

/// Task of one ticket, a pure function. False: the line ends before it.
template <class P>
MONOMOE_HD bool decode(const P& p, Line line, int32_t ticket, Task* out) {
  return Cursor{p}.seek(p, line, ticket, out);
}

}  // namespace monomoe
