#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_KERNELS_CUH_
#define ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_KERNELS_CUH_

// The kernels of COMPILED_FUSED, compiled by NVRTC at run time for one shape
// each: the TESSERA_ constants come from DefinesOf() in softmax_spec.h. NVRTC
// finds no headers, so BUILD.bazel puts the text of the included ones before
// this file's.
//
//   SoftmaxForward    P = softmax(S + M) over S;  L = logsumexp(S + M)
//   SoftmaxBackward   dS = P o (dP - rowsum(dO o O)) over dP
//
// Each kernel reads its n^2 operands once and writes its result once, except
// that the forward kernel reads rows twice if they do not fit in a CUDA block's
// registers. Scores after a query's last key are not read. Statistics and
// arithmetic are FP32; sums have a fixed order, so equal inputs give equal
// bits.

#include "attention_backends/key_range.h"

namespace {

constexpr int kQueries = TESSERA_QUERIES;  // S
constexpr int kKeys = TESSERA_KEYS;        // T
constexpr bool kCausal = TESSERA_CAUSAL != 0;
constexpr int kBandRows = TESSERA_BAND_ROWS;  // as in row_mask.h
constexpr int kPack = TESSERA_PACK;           // elements; divides kKeys
constexpr int kRowThreads = TESSERA_ROW_THREADS;
constexpr int kRowPacks = TESSERA_ROW_PACKS;  // 0: read twice
constexpr int kBlockThreads = TESSERA_BLOCK_THREADS;
constexpr int kChunkPacks = TESSERA_CHUNK_PACKS;
constexpr unsigned kChunks = TESSERA_CHUNKS;
constexpr int kBackwardThreads = TESSERA_BACKWARD_THREADS;

constexpr int kWarp = 32;
constexpr unsigned kFullWarp = 0xffffffff;
constexpr int kRowWarps = kRowThreads / kWarp;
constexpr int kRowsPerBlock = kBlockThreads / kRowThreads;
constexpr long long kRowStride = kKeys / kPack;  // packs
// CUDA blocks per multiprocessor, for 1024 threads of at most 64 registers
// each.
constexpr int kForwardBlocks = 1024 / kBlockThreads;
constexpr int kBackwardBlocks = 1024 / kBackwardThreads;

constexpr float kLog2E = 1.4426950408889634f;

static_assert(kKeys % kPack == 0, "rows must be whole packs");
static_assert(kRowsPerBlock == 1 || kRowWarps == 1,
              "rows that share a CUDA block must not use its barriers");

__device__ __forceinline__ float Infinity() {
  return __uint_as_float(0x7f800000);
}

// A word is the operand of one conversion: one FP32 number, or one or two
// 16-bit numbers.
#if TESSERA_IS_FLOAT
using Element = float;
using Word = float;
constexpr int kWordElements = 1;

__device__ __forceinline__ void Widen(float word, float* x) { x[0] = word; }
__device__ __forceinline__ void Narrow(const float* x, float* word) {
  *word = x[0];
}
#else
using Element = unsigned short;
#if TESSERA_PACK == 1
using Word = unsigned short;
#else
using Word = unsigned;
#endif
constexpr int kWordElements = sizeof(Word) / sizeof(Element);

#if TESSERA_IS_HALF
__device__ __forceinline__ void Widen(unsigned short word, float* x) {
  asm("cvt.f32.f16 %0, %1;" : "=f"(x[0]) : "h"(word));
}
__device__ __forceinline__ void Narrow(const float* x, unsigned short* word) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(*word) : "f"(x[0]));
}
#else
__device__ __forceinline__ void Widen(unsigned short word, float* x) {
  x[0] = __uint_as_float(static_cast<unsigned>(word) << 16);
}
__device__ __forceinline__ void Narrow(const float* x, unsigned short* word) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(*word) : "f"(x[0]));
}
#endif

__device__ __forceinline__ void Widen(unsigned word, float* x) {
#if TESSERA_IS_HALF
  Widen(static_cast<unsigned short>(word), x);
  Widen(static_cast<unsigned short>(word >> 16), x + 1);
#else
  x[0] = __uint_as_float(word << 16);
  x[1] = __uint_as_float(word & 0xffff0000);
#endif
}
__device__ __forceinline__ void Narrow(const float* x, unsigned* word) {
#if TESSERA_IS_HALF
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(*word) : "f"(x[1]), "f"(x[0]));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(*word) : "f"(x[1]), "f"(x[0]));
#endif
}
#endif

constexpr int kWords = kPack / kWordElements;
struct alignas(kWords * sizeof(Word)) Pack {
  Word words[kWords];
};

__device__ __forceinline__ void Widen(const Pack& pack, float (&x)[kPack]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    Widen(pack.words[i], x + i * kWordElements);
  }
}
__device__ __forceinline__ Pack Narrow(const float (&x)[kPack]) {
  Pack pack;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    Narrow(x + i * kWordElements, &pack.words[i]);
  }
  return pack;
}

// exp(x - max). For 16-bit results it is the hardware's exp2 of one fused
// multiply-add: its error of about 2^-22 is far below their rounding.
__device__ __forceinline__ float Exp(float x, float max) {
#if TESSERA_IS_FLOAT
  return expf(x - max);
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;"
      : "=f"(result)
      : "f"(fmaf(x, kLog2E, -max * kLog2E)));
  return result;
#endif
}

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    x += __shfl_xor_sync(kFullWarp, x, lane);
  }
  return x;
}
__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, lane));
  }
  return x;
}

// CUDA blocks take the rows from last to first: L2 then still holds the end of
// what the previous product wrote, and later the beginning of what the next
// product reads.
__device__ __forceinline__ unsigned Block() {
  return gridDim.x - 1 - blockIdx.x;
}

__device__ __forceinline__ tessera::AttentionMask<int> Mask() {
  return {kQueries, kKeys, tessera::kAllKeys, kCausal ? 0 : tessera::kAllKeys};
}

// RowMask::Visible() and RowMask::Written().
__device__ __forceinline__ int Visible(int query) {
  return Mask().Keys(query).size();
}
__device__ __forceinline__ int Written(int query) {
  if (!kCausal || kBandRows == kQueries) return kKeys;
  const int band_end = (query / kBandRows + 1) * kBandRows;
  return Mask().KeysOfRow(band_end - 1).end;
}

// The maximum m of some scores of one row, and sum exp(S - m), in which m
// counts as 0 if it is -infinity. Without scores, m = -infinity and sum = 0.
struct Statistics {
  float max, sum;
};
__device__ __forceinline__ float Reference(float max) {
  return max == -Infinity() ? 0 : max;
}
// exp(max - row_max), the factor from a sum relative to max to one relative to
// row_max.
__device__ __forceinline__ float Rescale(float max, float row_max) {
  return max == -Infinity() ? 0 : Exp(max, row_max);
}
__device__ __forceinline__ Statistics WarpCombine(Statistics part) {
  const float max = WarpMax(part.max);
  return {max, WarpSum(part.sum * Rescale(part.max, max))};
}
// Combines the statistics of a row's warps; every thread of the row gets the
// result.
__device__ __forceinline__ Statistics RowCombine(Statistics warp) {
  if constexpr (kRowWarps == 1) {
    return warp;
  } else {
    __shared__ Statistics parts[kRowWarps];
    const int lane = threadIdx.x % kWarp;
    if (lane == 0) parts[threadIdx.x / kWarp] = warp;
    __syncthreads();
    return WarpCombine(lane < kRowWarps ? parts[lane]
                                        : Statistics{-Infinity(), 0});
  }
}

// The scores of a pack that begins at key `begin`; -infinity from key `visible`
// on.
__device__ __forceinline__ void MaskedScores(const Pack& pack, int begin,
                                             int visible, float (&x)[kPack]) {
  Widen(pack, x);
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    if (begin + k >= visible) x[k] = -Infinity();
  }
}

// Processes a row that fits in registers. Thread t holds every kRowThreads-th
// pack from pack t on.
__device__ __forceinline__ Statistics HeldRow(Pack* row, int thread,
                                              int visible, int written) {
  constexpr int kHeld = kRowPacks > 0 ? kRowPacks : 1;
  Pack packs[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int index = i * kRowThreads + thread;
    packs[i] = index * kPack < visible ? row[index] : Pack{};
  }
  float x[kHeld][kPack];
  float max = -Infinity();
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    MaskedScores(packs[i], (i * kRowThreads + thread) * kPack, visible, x[i]);
#pragma unroll
    for (int k = 0; k < kPack; ++k) max = fmaxf(max, x[i][k]);
  }
  max = WarpMax(max);
  const float reference = Reference(max);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      x[i][k] = Exp(x[i][k], reference);
      sum += x[i][k];
    }
  }
  const Statistics statistics = RowCombine({max, WarpSum(sum)});
  const float factor =
      max == -Infinity() ? 0 : Exp(max, statistics.max) / statistics.sum;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int index = i * kRowThreads + thread;
    if (index * kPack >= written) continue;
#pragma unroll
    for (int k = 0; k < kPack; ++k) x[i][k] *= factor;
    row[index] = Narrow(x[i]);
  }
  return statistics;
}

// Processes a row of any length: online statistics (Milakov and Gimelshein,
// arXiv:1805.02867), then a second pass. A thread writes only what no other
// thread reads.
__device__ __forceinline__ Statistics LongRow(Pack* row, int thread,
                                              int visible, int written) {
  Statistics mine = {-Infinity(), 0};
  for (int index = thread; index * kPack < visible; index += kRowThreads) {
    float x[kPack];
    MaskedScores(row[index], index * kPack, visible, x);
    float max = mine.max;
#pragma unroll
    for (int k = 0; k < kPack; ++k) max = fmaxf(max, x[k]);
    const float reference = Reference(max);
    mine.sum *= Rescale(mine.max, max);
    mine.max = max;
#pragma unroll
    for (int k = 0; k < kPack; ++k) mine.sum += Exp(x[k], reference);
  }
  const Statistics statistics = RowCombine(WarpCombine(mine));
  const float reference = Reference(statistics.max);
  const float factor = statistics.max == -Infinity() ? 0 : 1 / statistics.sum;
  for (int index = thread; index * kPack < written; index += kRowThreads) {
    float x[kPack] = {};
    if (index * kPack < visible) {
      MaskedScores(row[index], index * kPack, visible, x);
#pragma unroll
      for (int k = 0; k < kPack; ++k) x[k] = Exp(x[k], reference) * factor;
    }
    row[index] = Narrow(x);
  }
  return statistics;
}

// A [B, H, S, D] tensor with any strides, in elements, except that D is
// contiguous.
struct HeadRows {
  const Element* data;
  long long batch_stride, head_stride, row_stride;
};

// rowsum(dO o O) of one query, in every lane of a warp.
__device__ __forceinline__ float RowDot(const Element* a, const Element* b,
                                        int count) {
  float sum = 0;
  for (int i = threadIdx.x % kWarp; i < count; i += kWarp) {
    float x, y;
    Widen(a[i], &x);
    Widen(b[i], &y);
    sum = fmaf(x, y, sum);
  }
  return WarpSum(sum);
}

}  // namespace

// scores: [rows, T], S on entry and P on return; lse: [rows] or null. `rows` is
// B H S. Each row has kRowThreads threads.
extern "C" __global__ void __launch_bounds__(kBlockThreads, kForwardBlocks)
    SoftmaxForward(Pack* scores, float* lse, unsigned rows) {
  const int thread = threadIdx.x % kRowThreads;
  const unsigned row = Block() * kRowsPerBlock + threadIdx.x / kRowThreads;
  if (row >= rows) return;  // whole warps; never in blocks that use barriers
  const int query = static_cast<int>(row % kQueries);
  Pack* const packs = scores + row * kRowStride;
  Statistics statistics;
  if constexpr (kRowPacks > 0) {
    statistics = HeldRow(packs, thread, Visible(query), Written(query));
  } else {
    statistics = LongRow(packs, thread, Visible(query), Written(query));
  }
  if (lse != nullptr && thread == 0) {
    lse[row] = statistics.max + logf(statistics.sum);
  }
}

// p, d_p: [rows, T]; d_p holds dP on entry and dS on return. Each warp takes
// 1 / kChunks of a row.
extern "C" __global__ void __launch_bounds__(kBackwardThreads, kBackwardBlocks)
    SoftmaxBackward(const Pack* __restrict__ p, Pack* __restrict__ d_p,
                    HeadRows d_o, HeadRows o, int heads, int head_dim,
                    unsigned rows) {
  const unsigned warp =
      Block() * (kBackwardThreads / kWarp) + threadIdx.x / kWarp;
  const unsigned row = warp / kChunks;
  if (row >= rows) return;
  const int query = static_cast<int>(row % kQueries);
  const int visible = Visible(query), written = Written(query);
  const int first_pack = static_cast<int>(warp % kChunks) * kChunkPacks * kWarp;
  if (first_pack * kPack >= written) return;

  const int lane = threadIdx.x % kWarp;
  p += row * kRowStride + first_pack + lane;
  d_p += row * kRowStride + first_pack + lane;
  const int begin = (first_pack + lane) * kPack;
  Pack p_packs[kChunkPacks], d_p_packs[kChunkPacks];
#pragma unroll
  for (int i = 0; i < kChunkPacks; ++i) {
    const bool seen = begin + i * kWarp * kPack < visible;
    p_packs[i] = seen ? p[i * kWarp] : Pack{};
    d_p_packs[i] = seen ? d_p[i * kWarp] : Pack{};
  }
  // Every chunk of a row recomputes the row's sum from L1, so that no warp
  // waits for another; that reads 2 D elements next to 2 KiB of P and dP.
  float delta = 0;
  if (first_pack * kPack < visible) {
    const long long head = row / kQueries % heads,
                    batch = row / kQueries / heads;
    delta = RowDot(d_o.data + batch * d_o.batch_stride +
                       head * d_o.head_stride + query * d_o.row_stride,
                   o.data + batch * o.batch_stride + head * o.head_stride +
                       query * o.row_stride,
                   head_dim);
  }
#pragma unroll
  for (int i = 0; i < kChunkPacks; ++i) {
    const int key = begin + i * kWarp * kPack;
    if (key >= written) continue;
    float p_keys[kPack], d_keys[kPack];
    Widen(p_packs[i], p_keys);
    Widen(d_p_packs[i], d_keys);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      d_keys[k] = key + k < visible ? p_keys[k] * (d_keys[k] - delta) : 0;
    }
    d_p[i * kWarp] = Narrow(d_keys);
  }
}

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_KERNELS_CUH_
