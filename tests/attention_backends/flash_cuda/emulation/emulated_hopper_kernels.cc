// BUILD.bazel compiles this file once for each head dim.

#include "tests/attention_backends/flash_cuda/emulation/emulated_hopper_kernels.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "attention_backends/flash_cuda/hopper/tiles.h"
#include "tests/attention_backends/flash_cuda/emulation/emulated_hopper.h"

// These use what comes above.
#include "attention_backends/flash_cuda/hopper/backward_kernel.cuh"
#include "attention_backends/flash_cuda/hopper/forward_kernel.cuh"

namespace tessera {
namespace flash {
namespace hopper {
namespace {

constexpr float kLog2E = 1.44269504088896f;

template <typename Tile>
CUtensorMap Map(const HeadView& view, int64_t rows, int64_t columns,
                int box_rows) {
  return {view, static_cast<int>(rows), static_cast<int>(columns), box_rows,
          Tile::kWidth};
}

TileOrder Order(int64_t rows, int block_rows, int64_t heads) {
  return {.blocks = static_cast<int>((rows + block_rows - 1) / block_rows),
          .heads = static_cast<int>(heads),
          .section = 2};
}

template <bool kCausal, bool kShort, int kHeadDim>
void Forward(const ForwardParams& p) {
  constexpr ForwardTile kTile = ForwardTileOf(kHeadDim, kCausal, kShort);
  using Traits = ForwardTraits<c10::BFloat16, kHeadDim, kTile.warpgroups,
                               kTile.keys, kCausal>;
  using QTile = typename Traits::QTile;
  using KTile = typename Traits::KTile;
  const ForwardMaps maps = {Map<QTile>(p.q, p.s, p.d, Traits::kQueries),
                            Map<KTile>(p.k, p.t, p.d, Traits::kKeys),
                            Map<KTile>(p.v, p.t, p.d, Traits::kKeys),
                            Map<QTile>(p.o, p.s, p.d, 64)};
  int taken = 0;
  const ForwardArgs args = {.order = Order(p.s, Traits::kQueries, p.b * p.h),
                            .s = static_cast<int>(p.s),
                            .t = static_cast<int>(p.t),
                            .heads = static_cast<int>(p.h),
                            .group = static_cast<int>(p.h / p.g),
                            .scale_log2 = p.scale * kLog2E,
                            .lse = p.lse,
                            .next_tile = &taken};
  // Fewer blocks than tiles: they take more as they go.
  emulated::RunGrid((args.order.count() + 1) / 2, Traits::kThreads,
                    sizeof(ForwardShared<Traits>) + 1024,
                    [&] { ForwardKernel<Traits>(maps, args); });
}

float At(const HeadView& view, int64_t b, int64_t h, int64_t row, int64_t c) {
  return static_cast<const c10::BFloat16*>(
      view.data)[b * view.batch_stride + h * view.head_stride +
                 row * view.row_stride + c];
}

// Calls fn(batch, head, row, index of the padded row).
template <typename Fn>
void ForEachRow(const ForwardParams& p, int64_t padded, const Fn& fn) {
  for (int64_t b = 0; b < p.b; ++b) {
    for (int64_t h = 0; h < p.h; ++h) {
      for (int64_t row = 0; row < p.s; ++row) {
        fn(b, h, row, (b * p.h + h) * padded + row);
      }
    }
  }
}

template <bool kCausal, bool kDeterministic, int kHeadDim>
void Backward(const BackwardParams& params) {
  using Traits =
      BackwardTraits<c10::BFloat16, kHeadDim, kCausal, kDeterministic>;
  using Dq = typename Traits::Dq;
  using QTile = typename Traits::QTile;
  using KTile = typename Traits::KTile;
  const ForwardParams& p = params.forward;
  const int64_t padded = PaddedRows(p.s, Traits::kQueries);
  const int64_t tiles = p.b * p.h * padded / Traits::kQueries;
  std::vector<float> dq(tiles * Dq::kElements);
  std::vector<int> turns(tiles);
  std::vector<float> lse2(p.b * p.h * padded, INFINITY), delta(lse2.size());
  int taken = 0;
  ForEachRow(p, padded, [&](int64_t b, int64_t h, int64_t row, int64_t at) {
    const float lse = p.lse[(b * p.h + h) * p.s + row];
    if (lse > -INFINITY) lse2[at] = lse * kLog2E;
    for (int64_t c = 0; c < p.d; ++c) {
      delta[at] += At(p.o, b, h, row, c) * At(params.d_o, b, h, row, c);
    }
  });

  const BackwardMaps maps = {Map<QTile>(p.q, p.s, p.d, Traits::kQueries),
                             Map<QTile>(params.d_o, p.s, p.d, Traits::kQueries),
                             Map<KTile>(p.k, p.t, p.d, Traits::kKeys),
                             Map<KTile>(p.v, p.t, p.d, Traits::kKeys),
                             Map<KTile>(params.dk, p.t, p.d, 64),
                             Map<KTile>(params.dv, p.t, p.d, 64)};
  const BackwardArgs args = {.order = Order(p.t, Traits::kKeys, p.b * p.g),
                             .s = static_cast<int>(p.s),
                             .t = static_cast<int>(p.t),
                             .kv_heads = static_cast<int>(p.g),
                             .group = static_cast<int>(p.h / p.g),
                             .scale = p.scale,
                             .scale_log2 = p.scale * kLog2E,
                             .scratch = {.dq = dq.data(),
                                         .turns = turns.data(),
                                         .taken = &taken,
                                         .lse2 = lse2.data(),
                                         .delta = delta.data()}};
  emulated::RunGrid(args.order.count(), Traits::kThreads,
                    sizeof(BackwardShared<Traits>) + 1024,
                    [&] { BackwardKernel<Traits>(maps, args); });

  for (int64_t i = 0; i < tiles * Dq::kElements; ++i) {
    const auto place = Dq::At(i % Dq::kElements);
    const int64_t tile = i / Dq::kElements, per_head = padded / Dq::kQueries;
    const int64_t row = tile % per_head * Dq::kQueries + place.query;
    const int64_t head = tile / per_head % p.h, batch = tile / per_head / p.h;
    if (row >= p.s || place.column >= p.d) continue;
    static_cast<c10::BFloat16*>(
        params.dq.data)[batch * params.dq.batch_stride +
                        head * params.dq.head_stride +
                        row * params.dq.row_stride + place.column] =
        dq[i] * p.scale;
  }
}

}  // namespace
}  // namespace hopper
}  // namespace flash

namespace emulated {

template <int kHeadDim>
void HopperForward(const flash::ForwardParams& p, bool short_rows) {
  if (p.causal) {
    short_rows ? flash::hopper::Forward<true, true, kHeadDim>(p)
               : flash::hopper::Forward<true, false, kHeadDim>(p);
  } else {
    short_rows ? flash::hopper::Forward<false, true, kHeadDim>(p)
               : flash::hopper::Forward<false, false, kHeadDim>(p);
  }
}

template <int kHeadDim>
void HopperBackward(const flash::BackwardParams& p) {
  if (p.forward.causal) {
    p.deterministic ? flash::hopper::Backward<true, true, kHeadDim>(p)
                    : flash::hopper::Backward<true, false, kHeadDim>(p);
  } else {
    p.deterministic ? flash::hopper::Backward<false, true, kHeadDim>(p)
                    : flash::hopper::Backward<false, false, kHeadDim>(p);
  }
}

template void HopperForward<TESSERA_HEAD_DIM>(const flash::ForwardParams&,
                                              bool);
template void HopperBackward<TESSERA_HEAD_DIM>(const flash::BackwardParams&);

}  // namespace emulated
}  // namespace tessera
