#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "framework/cuda/hopper/panels.cuh"
#include "framework/cuda/hopper/ptx.cuh"
#include "framework/cuda/hopper/ring.cuh"
#include "framework/cuda/hopper/tensor_map.h"
#include "framework/cuda/hopper/wgmma.cuh"
#include "framework/cuda/instructions.cuh"
#include "framework/optim/symmetric_product_kernel.h"

// Half of the products of a general kernel: of D's tiles only those are
// computed that have an element on or below the diagonal, and the others are
// their mirror images. One block per multiprocessor goes through the tiles of
// all matrices. A thread of its first warpgroup fetches A and B through the
// copy engine, while the other two warpgroups multiply, 64 rows of the tile
// each.

namespace tessera {
namespace {

constexpr int kWarpgroups = 2;  // that multiply
constexpr int kThreads = 128 * (1 + kWarpgroups);
constexpr int kRows = 64 * kWarpgroups, kColumns = 256;  // of a tile of D
constexpr int kDepth = 64;  // of A and B in shared memory
constexpr int kStages = 4;
constexpr int kPiece = 64;  // columns that leave at once
constexpr int kSums = kColumns / 2, kPieceSums = kPiece / 2;  // of a thread

// [kSize, kDepth] of an operand, transposed [kDepth, kSize].
template <bool kTransposed, int kSize>
using OperandTile = std::conditional_t<kTransposed, Panels<kDepth, kSize>,
                                       Panels<kSize, kDepth>>;
using Piece = Panels<64, kPiece>;

template <bool kTransposed>
struct Shared {
  using A = OperandTile<kTransposed, kRows>;
  using B = OperandTile<kTransposed, kColumns>;
  alignas(1024) uint8_t a[kStages][A::kBytes];
  alignas(1024) uint8_t b[kStages][B::kBytes];
  // What leaves, and its mirror image.
  alignas(1024) uint8_t piece[kWarpgroups][Piece::kBytes];
  alignas(1024) uint8_t mirrored[kWarpgroups][Piece::kBytes];
  Mbarrier full[kStages], empty[kStages];
};

struct Maps {
  CUtensorMap a, b, d;
};

struct Args {
  int count, n, steps;  // of kDepth
  const __half* c;
  float alpha, beta, diagonal;
};

// Tiles are numbered column by column, from the diagonal down.
struct Tile {
  int matrix, first_row, first_column;

  __device__ static int CountOf(int n) {
    int count = 0;
    for (int column = 0; column < n; column += kColumns) {
      count += (n - column + kRows - 1) / kRows;
    }
    return count;
  }
  __device__ static Tile At(int i, int per_matrix, int n) {
    int rest = i % per_matrix, column = 0;
    for (;; column += kColumns) {
      const int rows = (n - column + kRows - 1) / kRows;
      if (rest < rows) break;
      rest -= rows;
    }
    return {i / per_matrix, column + rest * kRows, column};
  }
  // Whether the mirror image is no tile of its own.
  __device__ bool below_diagonal() const {
    return first_row >= first_column + kColumns;
  }
};

// Calls fn(tile) for the tiles of this block.
template <typename Fn>
__device__ __forceinline__ void ForEachTile(const Args& args, const Fn& fn) {
  const int per_matrix = Tile::CountOf(args.n);
  const int count = args.count * per_matrix;
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    fn(Tile::At(i, per_matrix, args.n));
  }
}

template <bool kTransposed, typename Operand>
__device__ __forceinline__ void Load(const CUtensorMap& map, int matrix,
                                     int first, int depth, Mbarrier* full,
                                     uint8_t* to) {
#pragma unroll
  for (int panel = 0; panel < Operand::kCount; ++panel) {
    const int along = panel * Operand::kWidth;
    TmaLoad(map,
            kTransposed ? TileCoordinate{first + along, depth, matrix, 0}
                        : TileCoordinate{depth + along, first, matrix, 0},
            full, to + panel * Operand::kPanelBytes);
  }
}

template <bool kTransposed>
__device__ void Fetch(const Maps& maps, const Args& args,
                      Shared<kTransposed>& shared) {
  using S = Shared<kTransposed>;
  RingIndex<kStages> ring;
  ForEachTile(args, [&](const Tile& tile) {
    for (int step = 0; step < args.steps; ++step) {
      const int stage = ring.stage;
      shared.empty[stage].Wait(ring.parity ^ 1);
      shared.full[stage].ArriveExpecting(S::A::kBytes + S::B::kBytes);
      Load<kTransposed, typename S::A>(maps.a, tile.matrix, tile.first_row,
                                       step * kDepth, &shared.full[stage],
                                       shared.a[stage]);
      Load<kTransposed, typename S::B>(maps.b, tile.matrix, tile.first_column,
                                       step * kDepth, &shared.full[stage],
                                       shared.b[stage]);
      ring.Advance();
    }
  });
}

// 64 rows of a tile.
template <bool kTransposed>
class Consumer {
 public:
  using S = Shared<kTransposed>;

  __device__ Consumer(const Maps& maps, const Args& args, S& shared,
                      int warpgroup)
      : maps_(maps), args_(args), shared_(shared), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void Run() {
    ForEachTile(args_, [&](const Tile& tile) {
      float sums[kSums];
      Multiply(sums);
      Store(tile, sums);
    });
    // Shared memory ends with the block.
    if (threadIdx.x % 128 == 0) TmaWaitRead();
  }

 private:
  __device__ __forceinline__ void Multiply(float (&sums)[kSums]) {
    constexpr Major kMajor = kTransposed ? Major::kMn : Major::kK;
    for (int step = 0; step < args_.steps; ++step) {
      shared_.full[ring_.stage].Wait(ring_.parity);
      const uint32_t a = SharedAddress(shared_.a[ring_.stage]);
      const uint32_t b = SharedAddress(shared_.b[ring_.stage]);
      PinRegisters(sums);
      WgmmaFence();
#pragma unroll
      for (int k = 0; k < kDepth; k += 16) {
        uint64_t from_a, from_b;
        if constexpr (kTransposed) {
          from_a = S::A::MnMajor(a, k, 64 * warpgroup_);
          from_b = S::B::MnMajor(b, k);
        } else {
          from_a = S::A::KMajor(a, 64 * warpgroup_, k);
          from_b = S::B::KMajor(b, 0, k);
        }
        Wgmma<kColumns>::template Shared<__half, kMajor, kMajor>(
            sums, from_a, from_b, step > 0 || k > 0);
      }
      WgmmaCommit();
      WgmmaWait<1>();  // the products before these have ended
      if (step > 0) Release();
      ring_.Advance();
    }
    WgmmaWait<0>();
    PinRegisters(sums);
    Release();
  }

  // Releases the oldest stage whose products have ended.
  __device__ __forceinline__ void Release() {
    if (threadIdx.x % 128 == 0) shared_.empty[read_].Arrive();
    read_ = read_ + 1 < kStages ? read_ + 1 : 0;
  }

  __device__ __forceinline__ void Store(const Tile& tile,
                                        float (&sums)[kSums]) {
#pragma unroll
    for (int piece = 0; piece < kColumns / kPiece; ++piece) {
      const int column = tile.first_column + piece * kPiece;
      if (column >= args_.n) break;
      float values[kPieceSums];
#pragma unroll
      for (int i = 0; i < kPieceSums; ++i) {
        values[i] = args_.alpha * sums[piece * kPieceSums + i];
      }
      AddRest(tile, column, values);
      StorePiece(tile, column, values);
    }
  }

  // Adds beta C + diagonal I.
  __device__ __forceinline__ void AddRest(const Tile& tile, int column,
                                          float (&values)[kPieceSums]) const {
    const int row = tile.first_row + 64 * warpgroup_ +
                    threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    column += threadIdx.x % 4 * 2;
    const int n = args_.n;
    const __half* const c = args_.c + static_cast<int64_t>(tile.matrix) * n * n;
#pragma unroll
    for (int i = 0; i < kPieceSums; i += 2) {
      const int r = row + i / 2 % 2 * 8, first = column + i / 4 * 8;
      if (args_.c != nullptr && r < n && first < n) {
        const float2 pair = Unpack<__half>(*reinterpret_cast<const uint32_t*>(
            c + static_cast<int64_t>(r) * n + first));
        values[i] += args_.beta * pair.x;
        values[i + 1] += args_.beta * pair.y;
      }
      if (r == first) values[i] += args_.diagonal;
      if (r == first + 1) values[i + 1] += args_.diagonal;
    }
  }

  // Through shared memory to the copy engine.
  __device__ __forceinline__ void StorePiece(
      const Tile& tile, int column, const float (&values)[kPieceSums]) {
    const int barrier = 1 + warpgroup_;
    const int row = tile.first_row + 64 * warpgroup_;
    // The copy engine may still read the last piece.
    if (threadIdx.x % 128 == 0) TmaWaitRead();
    BarrierSync(barrier, 128);
    const uint32_t direct = SharedAddress(shared_.piece[warpgroup_]);
    const uint32_t mirrored = SharedAddress(shared_.mirrored[warpgroup_]);
#pragma unroll
    for (int i = 0; i < kPiece / 16; ++i) {
      uint32_t packed[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        packed[j] =
            Pack<__half>(values[8 * i + 2 * j], values[8 * i + 2 * j + 1]);
      }
      StoreFragment<Piece>(direct, 0, 16 * i, packed);
      if (tile.below_diagonal()) {
        StoreTransposedFragment<Piece>(mirrored, 16 * i, 0, packed);
      }
    }
    FenceProxyAsync();
    BarrierSync(barrier, 128);
    if (threadIdx.x % 128 != 0) return;
    TmaStore(maps_.d, {column, row, tile.matrix, 0}, shared_.piece[warpgroup_]);
    if (tile.below_diagonal()) {
      TmaStore(maps_.d, {row, column, tile.matrix, 0},
               shared_.mirrored[warpgroup_]);
    }
    TmaCommit();
  }

  const Maps& maps_;
  const Args& args_;
  S& shared_;
  const int warpgroup_;
  RingIndex<kStages> ring_;
  int read_ = 0;
};

template <bool kTransposed>
__global__ void __launch_bounds__(kThreads, 1)
    SymmetricProductKernel(const __grid_constant__ Maps maps,
                           const __grid_constant__ Args args) {
  auto& shared = *reinterpret_cast<Shared<kTransposed>*>(SharedMemory());
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      shared.full[stage].Init(1);
      shared.empty[stage].Init(kWarpgroups);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  const int warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) {
    ShrinkRegisters<40>();
    if (threadIdx.x == 0) Fetch<kTransposed>(maps, args, shared);
  } else {
    GrowRegisters<232>();
    Consumer<kTransposed>(maps, args, shared, warpgroup - 1).Run();
  }
}

// A map of `count` matrices [rows, columns].
cudaError_t MakeMap(const SymmetricProductParams& p, const void* data,
                    int64_t rows, int64_t columns, int box_rows,
                    CUtensorMap* map) {
  return MakeTensorMap({.type = FloatType::kHalf,
                        .view = {.data = const_cast<void*>(data),
                                 .batch_stride = p.count * rows * columns,
                                 .head_stride = rows * columns,
                                 .row_stride = columns},
                        .batch = 1,
                        .heads = p.count,
                        .rows = rows,
                        .columns = columns,
                        .box_rows = box_rows,
                        .box_columns = 64},
                       map);
}

template <bool kTransposed>
cudaError_t Launch(const SymmetricProductParams& p, cudaStream_t stream) {
  using S = Shared<kTransposed>;
  const int64_t rows = kTransposed ? p.k : p.n;
  const int64_t columns = kTransposed ? p.n : p.k;
  Maps maps;
  cudaError_t error = MakeMap(p, p.a, rows, columns, S::A::kRows, &maps.a);
  if (error == cudaSuccess) {
    error = MakeMap(p, p.b, rows, columns, S::B::kRows, &maps.b);
  }
  if (error == cudaSuccess) error = MakeMap(p, p.d, p.n, p.n, 64, &maps.d);
  if (error != cudaSuccess) return error;
  const Args args = {.count = static_cast<int>(p.count),
                     .n = static_cast<int>(p.n),
                     .steps = static_cast<int>((p.k + kDepth - 1) / kDepth),
                     .c = static_cast<const __half*>(p.c),
                     .alpha = p.alpha,
                     .beta = p.beta,
                     .diagonal = p.diagonal};
  int device = 0, multiprocessors = 0;
  error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&multiprocessors,
                                 cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  constexpr int kSharedBytes = sizeof(S);
  static_assert(kSharedBytes <= 227 * 1024);
  error = cudaFuncSetAttribute(SymmetricProductKernel<kTransposed>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kSharedBytes);
  if (error != cudaSuccess) return error;
  const cudaLaunchConfig_t config = {
      .gridDim = {static_cast<unsigned>(multiprocessors)},
      .blockDim = {kThreads},
      .dynamicSmemBytes = kSharedBytes,
      .stream = stream};
  return cudaLaunchKernelEx(&config, SymmetricProductKernel<kTransposed>, maps,
                            args);
}

}  // namespace

cudaError_t LaunchSymmetricProduct(const SymmetricProductParams& params,
                                   cudaStream_t stream) {
  return params.transposed ? Launch<true>(params, stream)
                           : Launch<false>(params, stream);
}

}  // namespace tessera
