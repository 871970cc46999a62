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
  int32_t per_tile{0};   // tickets a row tile
  int32_t per_chunk{0};  // tickets a chunk (weight gradients)
  int32_t from_tile{0};  // row tiles below are skipped
  int32_t lag_tiles{0};
};

constexpr int32_t kMaxStreams{5};

struct Streams {
  Stream at[kMaxStreams];
  int32_t count{0};
};

/// The streams of a launch. Lags: about one wave of workers behind the stream before.
template <class P>
MONOMOE_HD Streams streams_of(const P& p) {
  Streams s{};
  const int32_t w{p.knobs.workers};
  if (!p.backward) {
    s.count = 2;
    s.at[0] = {Kind::kGateUp, p.gu_tiles(), 0, 0, 0};
    s.at[1] = {Kind::kDown, p.hidden_tiles(), 0, 0, ceil_div(w, p.gu_tiles())};
    return s;
  }
  const bool recomputes{p.knobs.save_tiles < p.tables.num_tiles()};
  const int32_t lag_dd{recomputes ? ceil_div(w, p.gu_tiles()) : 0};
  const int32_t lag_dg{lag_dd + ceil_div(w, p.inter_tiles())};
  s.count = 5;
  s.at[0] = {Kind::kGateUp, p.gu_tiles(), 0, p.knobs.save_tiles, 0};
  s.at[1] = {Kind::kDgradDown, p.inter_tiles(), 0, 0, lag_dd};
  s.at[2] = {Kind::kDgradGateUp, p.hidden_tiles(), 0, 0, lag_dg};
  s.at[3] = {Kind::kWgradGateUp, 0, p.wgrad_gate_up_tiles(), 0, lag_dg};
  s.at[4] = {Kind::kWgradDown, 0, p.wgrad_down_tiles(), 0, lag_dg};
  return s;
}

/// Walks the chunks of a rank in row order, experts without rows included as empty chunks.
template <class P>
MONOMOE_HD Chunk first_chunk(const P& p) {
  Chunk c{0, 0, 0};
  if (p.dims.local_experts() > 0) c.end = min_of(p.tables.tile_start[1], p.knobs.piece_tiles);
  return c;
}
template <class P>
MONOMOE_HD bool is_end(const P& p, const Chunk& c) {
  return c.expert >= p.dims.local_experts();
}
template <class P>
MONOMOE_HD Chunk next_chunk(const P& p, const Chunk& c) {
  if (c.end < p.tables.tile_start[c.expert + 1]) {
    const int32_t end{min_of(p.tables.tile_start[c.expert + 1], c.end + p.knobs.piece_tiles)};
    return {c.expert, c.end, end};
  }
  const int32_t e{c.expert + 1};
  if (e >= p.dims.local_experts()) return {e, c.end, c.end};
  return {e, c.end, min_of(p.tables.tile_start[e + 1], c.end + p.knobs.piece_tiles)};
}

template <class P>
MONOMOE_HD int32_t tickets_of(const P& p, const Stream& s, const Chunk& c) {
  if (s.per_chunk > 0) return c.begin < c.end || p.wanted.empty_experts ? s.per_chunk : 0;
  return s.per_tile * max_of(0, c.end - max_of(c.begin, s.from_tile));
}

template <class P>
MONOMOE_HD int32_t key_of(const P& p, const Stream& s, bool is_first, const Chunk& c) {
  if (is_first) return c.begin;
  const int32_t num_tiles{p.tables.num_tiles()};
  // Up to the end of the chunk in which the lag ends (sums in 64 bits: a lag may be as large as the
  // number of workers), but not beyond the last border that the ring allows.
  const int64_t lag_end{int64_t{c.end} + s.lag_tiles};
  const int64_t ring_end{int64_t{c.begin} + p.knobs.ring_tiles};
  int32_t key{num_tiles};
  if (s.lag_tiles == 0) {
    key = c.end;
  } else if (lag_end < num_tiles) {
    key = chunk_of_tile(p, static_cast<int32_t>(lag_end) - 1).end;
  }
  if (ring_end < key) key = chunk_of_tile(p, static_cast<int32_t>(ring_end)).begin;
  return max_of(c.end, key);
}

/// Starts with the tiles whose rows come from home rank + 1, so that owners don't all pull from one
/// home at once: position `i` of chunk `c` -> row tile.
template <class P>
MONOMOE_HD int32_t rotated_tile(const P& p, const Chunk& c, int32_t i) {
  const Dims& d{p.dims};
  int32_t shift{0};
  if (d.rank + 1 < d.ranks) {
    const int32_t row{p.tables.home_start[c.expert * (d.ranks + 1) + d.rank + 1]};
    const int32_t n{p.tables.tile_start[c.expert] + row / p.tile.rows};
    if (n > c.begin && n < c.end) shift = n - c.begin;
  }
  const int32_t size{c.end - c.begin};
  const int32_t at{i + shift};
  return c.begin + (at < size ? at : at - size);
}

/// Task `idx` of a segment.
template <class P>
MONOMOE_HD Task segment_task(const P& p, const Stream& s, const Chunk& c, int32_t pass,
                             int32_t idx) {
  Task t{};
  t.kind = s.kind;
  t.expert = c.expert;
  t.chunk = c;
  if (s.per_chunk > 0) {
    const bool gate_up{s.kind == Kind::kWgradGateUp};
    const TilePos at{raster(idx, gate_up ? p.wgrad_gate_up_rows() : p.wgrad_down_rows(),
                            gate_up ? p.hidden_tiles() : p.inter_tiles())};
    t.row = at.m;
    t.col = at.n;
    t.pass = pass;
    t.first = c.begin == p.tables.tile_start[c.expert];
    t.last = c.end == p.tables.tile_start[c.expert + 1];
    return t;
  }
  Chunk part{c};
  part.begin = max_of(c.begin, s.from_tile);
  const TilePos at{raster(idx, part.end - part.begin, s.per_tile)};
  t.row = rotated_tile(p, part, at.m);
  t.col = at.n;
  return t;
}

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

/// Decodes main-line tickets in rising order; `seek` costs the segments passed since the last call.
/// decode_main(plan, ticket) is the pure function; a cursor is its memory.
class MainCursor {
 public:
  MainCursor() = default;
  template <class P>
  MONOMOE_HD explicit MainCursor(const P& p) {
    start(p);
  }

  /// To the first ticket. (Not only a constructor: kernels keep the cursor in shared memory.)
  template <class P>
  MONOMOE_HD void start(const P& p) {
    streams_ = streams_of(p);
    head_ = shared_head(p);
    tail_ = shared_tail(p);
    part_ = Part::kHead;
    done_ = false;
    segment_ = -1;
    begin_ = count_ = 0;
    for (int32_t s{0}; s < streams_.count; ++s) {
      Lane& l{lanes_[s]};
      l = {first_chunk(p), 0, 0};
      if (!is_end(p, l.chunk)) l.key = key_of(p, streams_.at[s], s == 0, l.chunk);
    }
    advance(p);
  }

  /// False: the line has ended before `ticket`. Tickets must not fall from call to call.
  template <class P>
  MONOMOE_HD bool seek(const P& p, int32_t ticket, Task* out) {
    while (!done_ && ticket >= begin_ + count_) {
      begin_ += count_;
      advance(p);
    }
    if (done_) return false;
    const int32_t idx{ticket - begin_};
    if (part_ == Part::kRouted) {
      *out = segment_task(p, streams_.at[stream_], chunk_, pass_, idx);
    } else {
      const SharedSegment& s{(part_ == Part::kHead ? head_ : tail_).at[segment_]};
      const TilePos at{raster(idx, s.m_tiles, s.n_tiles)};
      *out = Task{};
      out->kind = s.kind;
      out->row = at.m;
      out->col = at.n;
    }
    return true;
  }

 private:
  enum class Part : uint8_t { kHead, kRouted, kTail };

  struct Lane {
    Chunk chunk{};
    int32_t key{0};
    int32_t passes{0};  // chunks of chunked experts so far
  };

  /// Moves to the next segment with tickets.
  template <class P>
  MONOMOE_HD void advance(const P& p) {
    for (;;) {
      if (part_ == Part::kHead) {
        if (++segment_ < head_.count) {
          count_ = head_.at[segment_].m_tiles * head_.at[segment_].n_tiles;
          return;
        }
        part_ = Part::kRouted;
      }
      if (part_ == Part::kRouted) {
        if (next_routed(p)) return;
        part_ = Part::kTail;
        segment_ = -1;
      }
      if (++segment_ < tail_.count) {
        count_ = tail_.at[segment_].m_tiles * tail_.at[segment_].n_tiles;
        return;
      }
      done_ = true;
      return;
    }
  }

  template <class P>
  MONOMOE_HD bool next_routed(const P& p) {
    for (;;) {
      int32_t best{-1};
      for (int32_t s{1}; s <= streams_.count; ++s) {  // the first stream comes last among equals
        const int32_t lane{s % streams_.count};
        if (is_end(p, lanes_[lane].chunk)) continue;
        if (best < 0 || lanes_[lane].key < lanes_[best].key) best = lane;
      }
      if (best < 0) return false;
      Lane& l{lanes_[best]};
      stream_ = best;
      chunk_ = l.chunk;
      count_ = tickets_of(p, streams_.at[best], chunk_);
      pass_ = chunk_.begin < chunk_.end && is_chunked(p, chunk_) ? l.passes++ : -1;
      l.chunk = next_chunk(p, l.chunk);
      if (!is_end(p, l.chunk)) l.key = key_of(p, streams_.at[best], best == 0, l.chunk);
      if (count_ > 0) return true;
    }
  }

  Streams streams_{};
  SharedSegments head_{};
  SharedSegments tail_{};
  Lane lanes_[kMaxStreams];
  Part part_{Part::kHead};
  bool done_{false};
  int32_t segment_{-1};
  int32_t stream_{0};
  Chunk chunk_{};
  int32_t pass_{-1};
  int32_t begin_{0};
  int32_t count_{0};
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
      while (rotated_tile(p, chunk_, last_at) != chunk_.end - 1) ++last_at;
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
    out->row = rotated_tile(p, chunk_, min_of(i, size - 1));
    out->col = idx;
    return true;
  }

 private:
  template <class P>
  MONOMOE_HD void count_chunk(const P& p) {
    count_ = 0;
    if (is_end(p, chunk_) || chunk_.begin == chunk_.end) return;
    last_parts_ = p.moves_of(p.rows_of(chunk_.expert, chunk_.end - 1));
    count_ =
        (chunk_.end - chunk_.begin - 1) * ceil_div(p.tile.rows, p.tile.move_rows) + last_parts_;
  }

  int32_t stages_;
  Chunk chunk_;
  int32_t begin_;
  int32_t count_{0};
  int32_t last_parts_{0};
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
