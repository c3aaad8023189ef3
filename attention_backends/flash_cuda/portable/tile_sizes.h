#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_TILE_SIZES_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_TILE_SIZES_H_

#include <cstdint>

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/portable/head_dims.h"
#include "attention_backends/flash_cuda/with_head_dim.h"

// The tiles of the kernels, per compiled head dim. Includes no CUDA: the host
// allocates shared memory and workspace by the same numbers.
//
// Two budgets limit them. Registers: 255 per thread for accumulators and
// operands; a CUDA block of 4 such warps leaves room for a second CUDA block on
// a multiprocessor, one of 8 does not. Shared memory: 163 KiB per CUDA block on
// sm_80, and 164 KiB per multiprocessor.

namespace tessera {
namespace flash {
namespace portable {

// Above, the kernels of FP32 (fp32/) run in TF32, too: tiles of floats take
// twice the memory.
inline constexpr int64_t kLargestTf32HeadDim = 128;

// Calls fn with the head dim of the kernels that run p and with whether they
// cap scores, as std::integral_constants. Surplus columns are zero. All head
// dims except 80 are FlashAttention-2's; 80 is common in models of 3B
// parameters.
template <typename Fn>
auto WithKernels(const ForwardParams& p, const Fn& fn) {
  return flash::WithKernels(HeadDims(), SoftCapHeadDims(), p.soft_cap != 0, p.d,
                            fn);
}

// A CUDA block holds a tile of queries and steps over tiles of keys. A warp
// owns 16 kRowBlocks queries, kRowBlocks being the number of 16-row tiles: with
// two it uses each operand that it reads from shared memory twice, hence two if
// the accumulators fit.
//
//   head dim             32, 64    80, 96, 128   192, 256
//   queries x keys     128 x 128    128 x 64     128 x 64
//   warps x 16-row tiles 4 x 2       4 x 2        8 x 1
//   registers: scores     128          64           32
//              O       32, 64  80, 96, 128      96, 128
//   shared KiB         24, 48  40, 48,  64      96, 128
//
// Floats, in TF32, take half as many keys:
//
//   queries x keys      128 x 64   128 x 32
//   registers: scores     64          32
//              O       32, 64  80, 96, 128
//   shared KiB         32, 64  60, 72,  96
template <int kHeadDim, int kElementBytes>
struct ForwardTiles {
  static constexpr int kQueries = 128;
  static constexpr int kKeys = (kHeadDim <= 64 ? 256 : 128) / kElementBytes;
  static constexpr int kWarps = kHeadDim <= 128 ? 4 : 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRowBlocks = kQueries / 16 / kWarps;

  // One tile of each: K is multiplied while V arrives, and vice versa.
  static constexpr int kQBytes = kQueries * kHeadDim * kElementBytes;
  static constexpr int kKBytes = kKeys * kHeadDim * kElementBytes;
  static constexpr int kVBytes = kKBytes;
  static constexpr int kSharedBytes = kQBytes + kKBytes + kVBytes;
};

// A CUDA block holds a tile of keys (K and V, for dK and dV) and steps over
// tiles of queries (Q and dO), or holds queries (for dQ) and steps over keys,
// with the same sizes. A warp owns 16 kRowBlocks held rows. Up to head dim 80
// it multiplies them by kSlice streamed rows at a time, and the scores stay in
// its registers for dK and dV, which it accumulates for all columns. Above 80,
// kColumnWarps warps own the same rows: each computes the scores of kSlice of
// the streamed rows and accumulates its part of the columns of dK and dV, for
// which the warps exchange P and dS through shared memory. That reads less
// shared memory: 144 operands per step and warp at head dim 128, instead of 176
// if each warp owned 16 rows. At head dim 96 there are registers left for V's
// rows.
//
//   head dim             32, 64       80      96, 128      192      256
//   held x streamed    128 x 64  128 x 64    128 x 64  64 x 64  64 x 32
//   warps                     4         8           8        8        8
//   column warps              1         1           2        4        2
//   16-row tiles              2         1           2        2        1
//   slice                    32        64          32       16       16
//   registers: S and dP      64        64          64       32       16
//              dK and dV 64, 128       80     96, 128       96      128
//              V                               48, 0
//   shared KiB          49, 81        97     129, 161      161      137
//
// Floats, in TF32: warps do not share rows.
//
//   head dim             32, 64    80, 96       128
//   held x streamed    128 x 32  128 x 32  128 x 16
//   warps                     4         8         8
//   16-row tiles              2         1         1
//   registers: S and dP      64        32        16
//              dK and dV 64, 128   80, 96       128
//   shared KiB          64, 112  136, 160       168
template <int kHeadDim, int kElementBytes>
struct BackwardTiles {
  static constexpr bool kTf32 = kElementBytes == 4;
  static constexpr int kHeld = kHeadDim <= 128 ? 128 : 64;
  static constexpr int kStreamed =
      (kHeadDim <= (kTf32 ? 96 : 192) ? 128 : 64) / kElementBytes;
  static constexpr int kWarps = kHeadDim <= 64 ? 4 : 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kColumnWarps = kHeadDim <= 80 || kTf32 ? 1
                                      : kHeadDim == 192       ? 4
                                                              : 2;
  static constexpr int kRowBlocks = kHeld / 16 * kColumnWarps / kWarps;
  static constexpr bool kSharesScores = kColumnWarps > 1;
  static constexpr bool kHoldsV = kHeadDim == 96 && !kTf32;
  static constexpr int kSlice = kSharesScores     ? kStreamed / kColumnWarps
                                : kRowBlocks == 2 ? 32
                                                  : kStreamed;

  // dQ of a query tile is a product over all held keys. The warps share it as a
  // grid and take pairs of 8 columns in turn.
  static constexpr int kDqColumnWarps = kTf32 ? 16 * kWarps / kStreamed
                                        : kHeadDim <= 96 ? 2
                                                         : 4;
  static constexpr int kDqRowBlocks = kStreamed / 16 * kDqColumnWarps / kWarps;
  static constexpr int kDqPairs =
      (kHeadDim / 16 + kDqColumnWarps - 1) / kDqColumnWarps;
  // FP32 sums of one query tile's dQ in global memory, next to each other for
  // adjacent threads.
  static constexpr int kDqElements = kDqRowBlocks * kDqPairs * 8 * kThreads;

  static constexpr int kHeldBytes = kHeld * kHeadDim * kElementBytes;
  static constexpr int kStreamedBytes = kStreamed * kHeadDim * kElementBytes;
  static constexpr int kStatisticsBytes = kStreamed * 8;
  static constexpr int kDsBytes = kHeld * kStreamed * kElementBytes;
  static constexpr int kPBytes = kSharesScores ? kDsBytes : 0;
  // Two held tiles; two stages of two streamed tiles and their statistics; dS
  // and P.
  static constexpr int kSharedBytes =
      2 * kHeldBytes + 2 * (2 * kStreamedBytes + kStatisticsBytes) + kDsBytes +
      kPBytes;
};

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_TILE_SIZES_H_
