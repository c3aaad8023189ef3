#include "attention_backends/flash_tiled/flash_tiled_backend.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/core/grad_mode.h"
#include "attention_backends/attention_sinks.h"
#include "attention_backends/document_bounds.h"
#include "attention_backends/key_range.h"
#include "c10/util/accumulate.h"
#include "framework/base/torch_status.h"
#include "framework/precision/precision_policy.h"

namespace tessera {
namespace {

// Rows of a tile of queries and of keys. Not fewer, since each pair of tiles
// costs a dozen launches; not more, since the scores of 128 x 128 tiles of 64
// heads, 4 MiB of FP32, stay in L2 from one operation to the next.
constexpr int64_t kQueryTile = 128, kKeyTile = 128;

// The parts of a workspace start at multiples of this, for aligned loads.
constexpr int64_t kPartAlignment = 64;  // elements

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Keys = KeyRange<int64_t>;
using Queries = QueryRange<int64_t>;

// The sizes of a problem. Queries that see no key come first; they are excluded
// here, so every query sees one.
struct Geometry {
  int64_t b, g, r, s, t, d;  // r = H / G; s excludes the blind queries
  int64_t blind;
  MaskSpec spec;
  double soft_cap;
  bool has_documents;
  at::Tensor documents;  // AttentionArgs

  int64_t kv_matrices() const { return b * g; }
  int64_t query_rows() const { return b * g * r; }  // per position
  int64_t QueryTile() const { return std::min(s, kQueryTile); }
  int64_t KeyTile() const { return std::min(t, kKeyTile); }
  Queries queries() const { return {0, s}; }
  Keys keys() const { return {0, t}; }
  AttentionMask<int64_t> mask() const {
    return {s, t, spec.before, spec.after};
  }
};

Geometry GeometryOf(const AttentionProblem& p) {
  Geometry n;
  n.b = p.b;
  n.g = p.g;
  n.r = p.h / p.g;
  n.t = p.t;
  n.d = p.d;
  n.spec = p.mask;
  n.soft_cap = p.soft_cap;
  n.has_documents = p.documents;
  n.blind = MaskOf(p).Queries(/*key=*/0).begin;
  n.s = p.s - n.blind;
  return n;
}

Geometry GeometryOf(const AttentionArgs& args) {
  Geometry n = GeometryOf(ProblemOf(args));
  n.documents = args.documents;
  return n;
}

double LowestOf(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? std::numeric_limits<double>::lowest()
                                        : std::numeric_limits<float>::lowest();
}

// The parts of a pass's one allocation, named by an enum of the pass.
using PartSizes = std::vector<int64_t>;  // elements

int64_t AlignedSize(int64_t elements) {
  return (elements + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

int64_t TotalSize(const PartSizes& sizes) {
  return std::accumulate(
      sizes.begin(), sizes.end(), int64_t{0},
      [](int64_t sum, int64_t size) { return sum + AlignedSize(size); });
}

std::vector<at::Tensor> AllocateParts(const PartSizes& sizes,
                                      const at::Tensor& like) {
  const at::Tensor all =
      at::empty({TotalSize(sizes)},
                like.options().dtype(ArithmeticDtype(like.scalar_type())));
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back(all.narrow(0, begin, size));
    begin += AlignedSize(size);
  }
  return parts;
}

// The beginning of a part as a tensor.
at::Tensor View(const at::Tensor& part, at::IntArrayRef sizes) {
  return part.narrow(0, 0, c10::multiply_integers(sizes)).view(sizes);
}

// Views of tensors of queries as [B, G, R, S, .] and of keys as
// [B, G, 1, T, .].
at::Tensor QueryView(const Geometry& n, const at::Tensor& x_bhsd) {
  return x_bhsd.unflatten(1, {n.g, n.r}).narrow(3, n.blind, n.s);
}
at::Tensor KeyView(const at::Tensor& x_bgtd) { return x_bgtd.unsqueeze(2); }

// Some rows of x, widened into `part`, with the heads of a group stacked:
// [B G, R rows, .].
template <typename Range>
at::Tensor Load(const at::Tensor& x, Range rows, const at::Tensor& part) {
  const at::Tensor source = x.narrow(3, rows.begin, rows.size());
  const at::Tensor tile = View(part, source.sizes());
  tile.copy_(source);
  return tile.view({x.size(0) * x.size(1), -1, x.size(4)});
}

template <typename Range>
void Store(const at::Tensor& tile, Range rows, const at::Tensor& x) {
  const at::Tensor target = x.narrow(3, rows.begin, rows.size());
  target.copy_(tile.view(target.sizes()));
}

// The tile [B G, R rows, width] in a part that holds one such tile after
// another.
at::Tensor TileOf(const Geometry& n, const at::Tensor& part, Queries rows,
                  int64_t width) {
  const int64_t per_position = n.query_rows() * width;
  return part.narrow(0, rows.begin * per_position, rows.size() * per_position)
      .view({n.kv_matrices(), n.r * rows.size(), width});
}

// The tiles of kTile rows that overlap `rows`, the last one cut at row `end`.
template <int64_t kTile, typename Range>
std::vector<Range> Tiles(Range rows, int64_t end) {
  const TileRange<int64_t> range = TilesOf<kTile>(rows);
  std::vector<Range> tiles;
  for (int64_t tile = range.begin; tile < range.end; ++tile) {
    tiles.push_back({tile * kTile, std::min((tile + 1) * kTile, end)});
  }
  return tiles;
}

// Adds M to the scores of a tile, [B G, R queries, keys], in place.
void Mask(const Geometry& n, Queries queries, Keys keys, const at::Tensor& s) {
  if (n.has_documents) {
    // Only the device knows which tiles are visible, so every tile is computed.
    HideOtherDocuments(n.documents.narrow(2, queries.begin, queries.size()),
                       keys.begin,
                       /*hide_later=*/n.spec.after != 0,
                       s.view({n.b, -1, queries.size(), keys.size()}));
  }
  const AttentionMask<int64_t> mask = n.mask();
  if (!mask.NeedsMask(queries, keys)) return;
  const auto ones = [&] {
    return at::ones({queries.size(), keys.size()},
                    s.options().dtype(at::kBool));
  };
  // The first query of the tile sees this many of its keys, each later query
  // one more.
  const at::Tensor hidden =
      ones().triu_(mask.Keys(queries.begin).end - keys.begin);
  if (mask.before != kAllKeys) {
    // The first query does not see this many of its keys.
    hidden.logical_or_(
        ones().tril_(mask.FirstKey(queries.begin) - keys.begin - 1));
  }
  s.view({-1, queries.size(), keys.size()}).masked_fill_(hidden, -kInfinity);
}

int64_t MaskBytes(const Geometry& n) {
  int64_t bands = 0;
  if (n.spec != MaskSpec::Full()) bands = n.spec.before == kAllKeys ? 1 : 2;
  const int64_t queries = n.QueryTile(), keys = n.KeyTile();
  return std::max(
      bands * queries * keys,
      n.has_documents ? HideOtherDocumentsBytes(n.b, queries, keys) : 0);
}

namespace forward {

enum Part {
  kQ,
  kK,
  kV,
  kP,
  kO,
  kMax,
  kNextMax,
  kRescale,
  kSum,
  kTileSum,
  kParts
};

PartSizes Sizes(const Geometry& n) {
  const int64_t queries = n.query_rows() * n.QueryTile();
  const int64_t keys = n.kv_matrices() * n.KeyTile();
  PartSizes sizes(kParts);
  sizes[kQ] = sizes[kO] = queries * n.d;
  sizes[kK] = sizes[kV] = keys * n.d;
  sizes[kP] = queries * n.KeyTile();
  sizes[kMax] = sizes[kNextMax] = sizes[kRescale] = queries;
  sizes[kSum] = sizes[kTileSum] = queries;
  return sizes;
}

struct Views {
  at::Tensor q, k, v, o, lse;
};

// Algorithm 1 for one tile of queries, with the paper's names.
void AttendTile(const Geometry& n, double scale, const Views& x,
                Queries queries, const std::vector<at::Tensor>& parts) {
  const at::Tensor q = Load(x.q, queries, parts[kQ]);
  const std::array<int64_t, 3> column = {q.size(0), q.size(1), 1};
  const at::Tensor o = View(parts[kO], q.sizes()).zero_();
  const at::Tensor l = View(parts[kSum], column).zero_();
  // Finite, because a tile may hold no key that a query sees.
  const at::Tensor m = View(parts[kMax], column).fill_(LowestOf(q));
  at::Tensor next_m = View(parts[kNextMax], column);
  at::Tensor rescale = View(parts[kRescale], column);
  at::Tensor tile_sum = View(parts[kTileSum], column);
  const Keys seen = n.mask().Keys(queries);
  for (const Keys keys : Tiles<kKeyTile>(seen, seen.end)) {
    const at::Tensor k = Load(x.k, keys, parts[kK]);
    const at::Tensor v = Load(x.v, keys, parts[kV]);
    const at::Tensor p = View(parts[kP], {q.size(0), q.size(1), keys.size()});
    p.baddbmm_(q, k.transpose(1, 2), /*beta=*/0, scale);
    ApplySoftCap(n.soft_cap, p);
    Mask(n, queries, keys, p);
    at::amax_out(next_m, p, {2}, /*keepdim=*/true);
    at::maximum_out(next_m, next_m, m);
    at::sub_out(rescale, m, next_m).exp_();
    p.sub_(next_m).exp_();
    at::sum_out(tile_sum, p, at::IntArrayRef{2}, /*keepdim=*/true);
    l.mul_(rescale).add_(tile_sum);
    o.mul_(rescale).baddbmm_(p, v);
    m.copy_(next_m);
  }
  Store(o.div_(l), queries, x.o);
  Store(l.log_().add_(m), queries, x.lse);
}

}  // namespace forward

namespace backward {

// kDQ and kRowSum hold every tile of queries, the others one tile.
enum Part {
  kQ,
  kDO,
  kK,
  kV,
  kDK,
  kDV,
  kP,
  kDS,
  kSlopes,  // of the soft cap
  kLse,
  kRowSum,
  kDQ,
  kParts
};

PartSizes Sizes(const Geometry& n) {
  const int64_t queries = n.query_rows() * n.QueryTile();
  const int64_t keys = n.kv_matrices() * n.KeyTile();
  PartSizes sizes(kParts);
  sizes[kQ] = sizes[kDO] = queries * n.d;
  sizes[kK] = sizes[kV] = sizes[kDK] = sizes[kDV] = keys * n.d;
  sizes[kP] = sizes[kDS] = queries * n.KeyTile();
  if (n.soft_cap != 0) sizes[kSlopes] = sizes[kP];
  sizes[kLse] = queries;
  sizes[kRowSum] = n.query_rows() * n.s;
  sizes[kDQ] = n.query_rows() * n.s * n.d;
  return sizes;
}

struct Views {
  at::Tensor q, k, v, o, lse, d_o, dq, dk, dv;
};

// rowsum(dO o O) of every query.
void RowSums(const Geometry& n, const Views& x,
             const std::vector<at::Tensor>& parts) {
  for (const Queries queries : Tiles<kQueryTile>(n.queries(), n.s)) {
    const at::Tensor d_o = Load(x.d_o, queries, parts[kDO]);
    const at::Tensor o = Load(x.o, queries, parts[kQ]);
    at::Tensor row_sum = TileOf(n, parts[kRowSum], queries, 1);
    at::sum_out(row_sum, o.mul_(d_o), at::IntArrayRef{2}, /*keepdim=*/true);
  }
}

// The tensors of a tile of keys during the loop over tiles of queries.
struct HeldKeys {
  Keys keys;
  at::Tensor k, v, dk, dv;
};

// The inner loop of Algorithm 2, with the paper's names.
void AddTile(const Geometry& n, double scale, const Views& x, Queries queries,
             const HeldKeys& tile, const std::vector<at::Tensor>& parts) {
  const at::Tensor q = Load(x.q, queries, parts[kQ]);
  const at::Tensor d_o = Load(x.d_o, queries, parts[kDO]);
  const at::Tensor lse = Load(x.lse, queries, parts[kLse]);
  const at::Tensor row_sum = TileOf(n, parts[kRowSum], queries, 1);
  const at::Tensor dq = TileOf(n, parts[kDQ], queries, n.d);
  const std::array<int64_t, 3> sizes = {q.size(0), q.size(1), tile.keys.size()};

  const at::Tensor p = View(parts[kP], sizes);
  p.baddbmm_(q, tile.k.transpose(1, 2), /*beta=*/0, scale);
  at::Tensor slopes;
  if (n.soft_cap != 0) {
    ApplySoftCap(n.soft_cap, p);
    slopes = View(parts[kSlopes], sizes).copy_(p);
    SoftCapSlopes(n.soft_cap, slopes);
  }
  Mask(n, queries, tile.keys, p);
  p.sub_(lse).exp_();
  tile.dv.baddbmm_(p.transpose(1, 2), d_o);

  const at::Tensor d_s = View(parts[kDS], sizes);
  d_s.baddbmm_(d_o, tile.v.transpose(1, 2), /*beta=*/0);
  d_s.sub_(row_sum).mul_(p);
  if (slopes.defined()) d_s.mul_(slopes);
  dq.baddbmm_(d_s, tile.k, /*beta=*/1, scale);
  tile.dk.baddbmm_(d_s.transpose(1, 2), q, /*beta=*/1, scale);
}

// Algorithm 2 without the rounding of dQ.
void AddKeyTiles(const Geometry& n, double scale, const Views& x,
                 const std::vector<at::Tensor>& parts) {
  for (const Keys keys : Tiles<kKeyTile>(n.keys(), n.t)) {
    HeldKeys tile = {keys, Load(x.k, keys, parts[kK]),
                     Load(x.v, keys, parts[kV])};
    tile.dk = View(parts[kDK], tile.k.sizes()).zero_();
    tile.dv = View(parts[kDV], tile.v.sizes()).zero_();
    const Queries seen_by = n.mask().Queries(keys);
    for (const Queries queries : Tiles<kQueryTile>(seen_by, n.s)) {
      AddTile(n, scale, x, queries, tile, parts);
    }
    Store(tile.dk, keys, x.dk);
    Store(tile.dv, keys, x.dv);
  }
}

}  // namespace backward
}  // namespace

absl::Status FlashTiledBackend::Supports(
    const AttentionProblem& problem) const {
  return RequireDtype(problem,
                      {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf});
}

AttentionMemory FlashTiledBackend::Plan(const AttentionProblem& problem) const {
  const Geometry n = GeometryOf(problem);
  const int64_t wide = c10::elementSize(ArithmeticDtype(problem.dtype));
  const int64_t rows = problem.b * problem.h * problem.s;
  const int64_t o = rows * problem.d * c10::elementSize(problem.dtype);
  AttentionMemory memory;
  memory.forward_bytes = TotalSize(forward::Sizes(n)) * wide + MaskBytes(n);
  if (!problem.needs_grad) {
    memory.forward_bytes += rows * wide;
    return memory;
  }
  memory.lse = TensorType{{problem.b, problem.h, problem.s},
                          ArithmeticDtype(problem.dtype)};
  memory.saved_bytes = o + rows * wide;
  memory.backward_bytes = TotalSize(backward::Sizes(n)) * wide + MaskBytes(n);
  return memory;
}

absl::Status FlashTiledBackend::Forward(const AttentionArgs& args,
                                        AttentionOut* out) const {
  return StatusFromTorch([&] {
    const at::NoGradGuard no_grad;
    const Geometry n = GeometryOf(args);
    const at::Tensor& q = args.q_bhsd;
    const int64_t b = q.size(0), h = q.size(1), s = q.size(2);
    out->o_bhsd = OutputOrEmpty(*out, q);
    out->lse_bhs =
        GivenOrEmpty(out->lse_bhs, {b, h, s},
                     q.options().dtype(ArithmeticDtype(q.scalar_type())));
    out->o_bhsd.narrow(2, 0, n.blind).zero_();
    out->lse_bhs.narrow(2, 0, n.blind).fill_(-kInfinity);

    const forward::Views views = {
        QueryView(n, q), KeyView(args.k_bgtd), KeyView(args.v_bgtd),
        QueryView(n, out->o_bhsd), QueryView(n, out->lse_bhs.unsqueeze(3))};
    const auto parts = AllocateParts(forward::Sizes(n), q);
    for (const Queries queries : Tiles<kQueryTile>(n.queries(), n.s)) {
      forward::AttendTile(n, args.scale, views, queries, parts);
    }
    if (args.sinks.defined()) {
      ApplySinks(args.sinks, out->o_bhsd, out->lse_bhs);
    }
  });
}

absl::Status FlashTiledBackend::Backward(const AttentionArgs& args,
                                         const AttentionOut& out,
                                         const at::Tensor& d_o_bhsd,
                                         AttentionGrads* grads) const {
  return StatusFromTorch([&] {
    const at::NoGradGuard no_grad;
    if (grads->d_sinks.defined()) {
      SinkGradients(args.sinks, out.o_bhsd, out.lse_bhs, d_o_bhsd,
                    grads->d_sinks);
    }
    const Geometry n = GeometryOf(args);
    backward::Views x;
    x.q = QueryView(n, args.q_bhsd);
    x.k = KeyView(args.k_bgtd);
    x.v = KeyView(args.v_bgtd);
    x.o = QueryView(n, out.o_bhsd);
    x.lse = QueryView(n, out.lse_bhs.unsqueeze(3));
    x.d_o = QueryView(n, d_o_bhsd);
    x.dq = QueryView(n, grads->dq_bhsd);
    x.dk = KeyView(grads->dk_bgtd);
    x.dv = KeyView(grads->dv_bgtd);

    const auto parts = AllocateParts(backward::Sizes(n), args.q_bhsd);
    backward::RowSums(n, x, parts);
    parts[backward::kDQ].zero_();
    backward::AddKeyTiles(n, args.scale, x, parts);
    for (const Queries queries : Tiles<kQueryTile>(n.queries(), n.s)) {
      Store(TileOf(n, parts[backward::kDQ], queries, n.d), queries, x.dq);
    }
    grads->dq_bhsd.narrow(2, 0, n.blind).zero_();
  });
}

}  // namespace tessera
