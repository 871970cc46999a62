// explain: what would be done, as text.
#include <sstream>

#include "monomoe/layer.h"
#include "plan/cost.h"
#include "plan/order.h"
#include "runtime/cpu_backend.h"
#include "runtime/planner.h"
#include "runtime/validate.h"

namespace monomoe {
namespace {

std::string megabytes(int64_t bytes) {
  std::ostringstream s;
  s.precision(1);
  s << std::fixed << static_cast<double>(bytes) / 1048576.0 << " MiB";
  return s.str();
}

std::string gigaflops(int64_t flops) {
  std::ostringstream s;
  s.precision(3);
  s << std::fixed << static_cast<double>(flops) * 1e-9 << " GFLOP";
  return s.str();
}

void print_cost(std::ostream& s, const char* pass, const Cost& c) {
  s << pass << ": " << gigaflops(c.flops) << ", reads " << megabytes(c.read_bytes) << ", writes "
    << megabytes(c.write_bytes) << " (each operand once)\n";
}

void print_order(std::ostream& s, const Shape& shape) {
  s << "forward order: " << (shape.shared > 0 ? "shared gate_up (and score), then " : "")
    << "gate_up by chunks of an expert, down " << kLagWaves << " waves behind"
    << (shape.shared > 0 ? ", then shared down" : "")
    << "; top-k sums as soon as a token block has arrived\n"
    << "backward order: " << (shape.shared > 0 ? "shared dgrads, then " : "")
    << "per chunk [gate_up again], dgrad_down, dgrad_gate_up, wgrads, overlapped as far as the "
       "ring allows"
    << (shape.shared > 0 ? ", then shared wgrads" : "") << "\n";
}

void print_regions(std::ostream& s, const WorkspaceFacts& f) {
  const Layout l{workspace_layout(f)};
  s << "memory of rank 0 (heap " << megabytes(l.heap_bytes) << ", local "
    << megabytes(l.local_bytes) << "):\n";
  for (int32_t i{0}; i < kNumRegions; ++i) {
    if (l.at[i].bytes == 0) continue;
    s << "  " << name_of(static_cast<Region>(i)) << ": " << megabytes(l.at[i].bytes) << "\n";
  }
}

}  // namespace

std::string explain(const Shape& shape, const Config& config) {
  check_shape(shape, shape.ranks);
  check_group(shape.ranks, 1.0);
  check_config(config);
  const TileShape tile{};
  Dims d{};
  d.ranks = static_cast<int32_t>(shape.ranks);
  d.tokens = static_cast<int32_t>(split_tokens(shape.tokens, shape.ranks)[0]);
  d.hidden = static_cast<int32_t>(shape.hidden);
  d.inter = static_cast<int32_t>(shape.intermediate);
  d.experts = static_cast<int32_t>(shape.experts);
  d.top_k = static_cast<int32_t>(shape.top_k);
  d.shared = static_cast<int32_t>(shape.shared);
  const PlanTraits traits{cpu_traits()};
  const Knobs fwd{choose_knobs(config, traits, tile, d, shape.tokens, false)};
  const Knobs bwd{choose_knobs(config, traits, tile, d, shape.tokens, true)};
  const int64_t rows{shape.tokens * shape.top_k};

  std::ostringstream s;
  s << "shape: T " << shape.tokens << ", H " << shape.hidden << ", I " << shape.intermediate
    << ", E " << shape.experts << ", K " << shape.top_k << ", shared " << shape.shared << ", ranks "
    << shape.ranks << "\n"
    << "backend: cpu, " << fwd.workers << " threads\n"
    << "tiles: " << tile.rows << " rows x " << tile.cols << " columns; a row tile has "
    << gate_up_tiles(d.inter, tile) << " gate_up, " << col_tiles(d.hidden, tile) << " down, "
    << col_tiles(d.inter, tile) << " dgrad_down and " << col_tiles(d.hidden, tile)
    << " dgrad_gate_up tiles; an expert has "
    << 2 * row_tiles(d.inter, tile) * col_tiles(d.hidden, tile) << " + "
    << row_tiles(d.hidden, tile) * col_tiles(d.inter, tile) << " wgrad tiles\n"
    << "ring: " << fwd.ring_tiles * tile.rows << " rows; chunks of at most "
    << fwd.piece_tiles * tile.rows << " rows in forward, " << bwd.piece_tiles * tile.rows
    << " in backward (" << policy_of(Arch::kCpu).reason << ")\n";
  print_order(s, shape);
  print_cost(s, "forward",
             forward_cost(shape.tokens, rows, shape.hidden, shape.intermediate, shape.experts,
                          shape.shared));
  print_cost(s, "backward",
             backward_cost(shape.tokens, rows, shape.hidden, shape.intermediate, shape.experts,
                           shape.shared));
  s << "kept between forward and backward: " << megabytes(saved_layout(d, tile, fwd).bytes)
    << " a rank (" << int64_t{fwd.save_tiles} * tile.rows << " rows of row space)\n";
  WorkspaceFacts facts{};
  facts.dims = d;
  facts.tile = tile;
  facts.ring_tiles = bwd.ring_tiles;
  facts.backward = true;
  facts.recomputes = bwd.save_tiles == 0;
  print_regions(s, facts);
  s << "times: come with measured records (bench)\n";
  return s.str();
}

}  // namespace monomoe
