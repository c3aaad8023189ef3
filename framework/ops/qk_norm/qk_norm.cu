#include <bit>
#include <type_traits>

#include "framework/cuda/kernel.cuh"
#include "framework/ops/qk_norm/qk_norm_launch.h"
#include "framework/ops/rms_norm/row_part.cuh"

// A block is blockDim.y groups of blockDim.x threads; each group processes a
// row. Groups of at most a warp sum with shuffles. A longer row takes the whole
// block (kWholeBlock).

namespace tessera {
namespace {

using device::RowPart;
using Section = QkNormParams::Section;

// Threads of a block whose groups are at most a warp.
constexpr int kGroupedThreads = 256;

// The section that this block works on, and the block's number in it.
struct Share {
  Section section;
  int block;
};

__device__ __forceinline__ Share ShareOf(const QkNormParams& p) {
  Share share = {p.sections[0], static_cast<int>(blockIdx.x)};
#pragma unroll
  for (int i = 1; i < QkNormParams::kSections; ++i) {
    if (share.block < share.section.blocks) break;
    share.block -= share.section.blocks;
    share.section = p.sections[i];
  }
  return share;
}

__device__ __forceinline__ int64_t OffsetOf(const QkNormParams& p,
                                            const Section& s, int64_t row) {
  const int64_t token = row / s.rows_per_token;
  return token * p.token_stride + s.offset +
         (row - token * s.rows_per_token) * s.width;
}

// The sum over the threads of a group, returned to each of them. All threads of
// the block take part.
template <bool kWholeBlock>
__device__ __forceinline__ float GroupSum(float x, float* scratch) {
  if constexpr (kWholeBlock) {
    return device::BlockSum(x, scratch);
  } else {
    for (int lane = blockDim.x / 2; lane > 0; lane /= 2) {
      x += __shfl_xor_sync(0xffffffff, x, lane);
    }
    return x;
  }
}

template <typename T, int N, int kPacks, bool kWholeBlock>
__global__ void __launch_bounds__(device::kMaxThreads)
    QkNormForward(const QkNormParams p) {
  __shared__ float scratch[device::kWarp];
  const auto [s, block] = ShareOf(p);
  const int64_t row = int64_t{block} * blockDim.y + threadIdx.y;
  // A group without a row has no columns.
  const int64_t width = row < s.rows ? s.width : 0;
  const int64_t offset = OffsetOf(p, s, row);
  T* const y = static_cast<T*>(p.y) + offset;
  RowPart<T, N, kPacks> x;
  x.Read(static_cast<const T*>(p.x) + offset, width);
  if (s.gain == nullptr) {
    x.Write(y, width);
    return;
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int c = (threadIdx.x + i * blockDim.x) * N;
    if (c >= width) break;
#pragma unroll
    for (int j = 0; j < N; ++j) squares += x.At(i, j) * x.At(i, j);
  }
  // Rounded twice; rsqrtf() errs by up to two units, mostly in one direction,
  // which sums over many rows keep.
  const float scale =
      1 / sqrtf(GroupSum<kWholeBlock>(squares, scratch) / s.width + p.eps);
  if (threadIdx.x == 0 && width > 0) s.r[row] = scale;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int c = (threadIdx.x + i * blockDim.x) * N;
    if (c >= width) break;
    float g[N], v[N];
    device::Load(s.gain + c, g);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = x.At(i, j) * scale * g[j];
    device::Store(y + c, v);
  }
}

// What backward reads of one row.
template <typename T, int N, int kPacks>
struct BackwardRow {
  RowPart<T, N, kPacks> x, dy;
  float r;
  int64_t offset;
  int64_t width;  // 0: no row

  __device__ __forceinline__ void Read(const QkNormParams& p, const Section& s,
                                       int64_t row) {
    width = row < s.rows ? s.width : 0;
    if (width == 0) return;
    offset = OffsetOf(p, s, row);
    r = s.r[row];
    x.Read(static_cast<const T*>(p.x) + offset, width);
    dy.Read(static_cast<const T*>(p.dy) + offset, width);
  }
};

// Writes this block's part of the gain's gradient, if it is wanted, from the
// parts of its threads.
template <int N, int kPacks, bool kWholeBlock>
__device__ __forceinline__ void StoreGainGradient(const Section& s, int block,
                                                  float (&dgain)[kPacks][N]) {
  if (s.partial_dgain == nullptr) return;
  if constexpr (!kWholeBlock) {
    static_assert(kPacks == 1);
    __shared__ float shares[kGroupedThreads][N];
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
    for (int j = 0; j < N; ++j) shares[thread][j] = dgain[0][j];
    for (int half = blockDim.y / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.y >= half) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        shares[thread][j] += shares[thread + half * blockDim.x][j];
      }
    }
    if (threadIdx.y > 0) return;
#pragma unroll
    for (int j = 0; j < N; ++j) dgain[0][j] = shares[thread][j];
  }
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int c = (threadIdx.x + i * blockDim.x) * N;
    if (c >= s.width) break;
    device::Store(s.partial_dgain + block * s.width + c, dgain[i]);
  }
}

// A group loads one row while it computes the one before. A thread has the same
// columns in every row.
template <typename T, int N, int kPacks, bool kWholeBlock>
__global__ void __launch_bounds__(device::kMaxThreads)
    QkNormBackward(const QkNormParams p) {
  __shared__ float scratch[device::kWarp];
  const auto [s, block] = ShareOf(p);
  float dgain[kPacks][N] = {};
  BackwardRow<T, N, kPacks> now, next;
  const int64_t step = int64_t{s.blocks} * blockDim.y;
  // The row of group 0, so that all groups leave the loop together.
  int64_t first = int64_t{block} * blockDim.y;
  now.Read(p, s, first + threadIdx.y);
  for (; first < s.rows; first += step) {
    next.Read(p, s, first + step + threadIdx.y);
    const float projection =
        device::AddGainGradient(now.dy, now.x, now.r, s.gain, now.width, dgain);
    const float mean = GroupSum<kWholeBlock>(projection, scratch) / s.width;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int c = (threadIdx.x + i * blockDim.x) * N;
      if (c >= now.width) break;
      float g[N], v[N];
      device::Load(s.gain + c, g);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        v[j] = now.r * (now.dy.At(i, j) * g[j] - now.x.At(i, j) * now.r * mean);
      }
      device::Store(static_cast<T*>(p.dx) + now.offset + c, v);
    }
    now = next;
  }
  StoreGainGradient<N, kPacks, kWholeBlock>(s, block, dgain);
}

// Calls fn with the size of a block for rows of at most `width`, and
// RowPart's kPacks and kWholeBlock as constants.
template <int N, typename Fn>
cudaError_t WithBlock(int64_t width, const Fn& fn) {
  const int64_t packs = (width + N - 1) / N;
  if (packs <= device::kWarp) {
    const unsigned lanes = std::bit_ceil(static_cast<unsigned>(packs));
    return fn(dim3(lanes, kGroupedThreads / lanes),
              std::integral_constant<int, 1>(), std::false_type());
  }
  return WithPacks<N>(
      width, [&]<int kPacks>(std::integral_constant<int, kPacks> constant) {
        return fn(dim3(Threads((packs + kPacks - 1) / kPacks)), constant,
                  std::true_type());
      });
}

int64_t LongestRow(const QkNormParams& p) {
  int64_t longest = 0;
  for (const Section& s : p.sections) longest = std::max(longest, s.width);
  return longest;
}

int Blocks(const QkNormParams& p) {
  int blocks = 0;
  for (const Section& s : p.sections) blocks += s.blocks;
  return blocks;
}

template <typename T, int N>
cudaError_t LaunchForward(QkNormParams p, cudaStream_t stream) {
  return WithBlock<N>(
      LongestRow(p), [&]<int kPacks, bool kWholeBlock>(
                         dim3 threads, std::integral_constant<int, kPacks>,
                         std::bool_constant<kWholeBlock>) {
        for (Section& s : p.sections) {
          s.blocks = static_cast<int>((s.rows + threads.y - 1) / threads.y);
        }
        QkNormForward<T, N, kPacks, kWholeBlock>
            <<<Blocks(p), threads, 0, stream>>>(p);
        return cudaGetLastError();
      });
}

template <typename T, int N>
cudaError_t LaunchBackward(const QkNormParams& p, cudaStream_t stream) {
  return WithBlock<N>(LongestRow(p),
                      [&]<int kPacks, bool kWholeBlock>(
                          dim3 threads, std::integral_constant<int, kPacks>,
                          std::bool_constant<kWholeBlock>) {
                        QkNormBackward<T, N, kPacks, kWholeBlock>
                            <<<Blocks(p), threads, 0, stream>>>(p);
                        return cudaGetLastError();
                      });
}

// Whether all accesses can be packs of N.
template <int N>
bool CanPack(const QkNormParams& p) {
  for (const Section& s : p.sections) {
    if (s.width % N != 0 || s.offset % N != 0 || !IsAligned(s.gain) ||
        !IsAligned(s.partial_dgain)) {
      return false;
    }
  }
  return p.token_stride % N == 0 && IsAligned(p.x) && IsAligned(p.y) &&
         IsAligned(p.dy) && IsAligned(p.dx);
}

}  // namespace

cudaError_t LaunchQkNormForward(const QkNormParams& p, cudaStream_t stream) {
  if (LongestRow(p) > kMaxRowWidth) return cudaErrorInvalidValue;
  return WithType(p.type, [&]<typename T>(T) {
    return CanPack<kPack<T>>(p) ? LaunchForward<T, kPack<T>>(p, stream)
                                : LaunchForward<T, 1>(p, stream);
  });
}

cudaError_t LaunchQkNormBackward(const QkNormParams& p, cudaStream_t stream) {
  if (LongestRow(p) > kMaxRowWidth) return cudaErrorInvalidValue;
  return WithType(p.type, [&]<typename T>(T) {
    return CanPack<kPack<T>>(p) ? LaunchBackward<T, kPack<T>>(p, stream)
                                : LaunchBackward<T, 1>(p, stream);
  });
}

}  // namespace tessera
