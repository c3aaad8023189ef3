#include <algorithm>

#include "framework/cuda/eight.cuh"
#include "framework/cuda/instructions.cuh"
#include "framework/cuda/kernel.cuh"
#include "framework/ops/linear/few_rows_kernel.h"

// Bound by reading W. One thread block on each multiprocessor loops over rows
// of W. Each of its warps reads four at a time, and the block keeps 80 KiB in
// flight with cp.async: register loads would need as much space in L1. It
// begins before it waits for x, so that memory stays busy while the previous
// kernel, on the other half of the multiprocessor, finishes.

namespace tessera {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * device::kWarp;
constexpr int kElements = device::Eight<float>::kElements;  // of a lane
constexpr int kTurn = device::kWarp * kElements;            // of a warp
constexpr int kGroup = 4;                                   // rows of W
constexpr int kAhead = 5;                                   // turns
constexpr int kAheadBytes = sizeof(uint4) * kAhead * kGroup * kThreads;

__device__ __forceinline__ void CopyAsync(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}
__device__ __forceinline__ void EndTurn() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until the copies of all but the last kLeft turns have arrived.
template <int kLeft>
__device__ __forceinline__ void WaitForTurns() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// A group of rows of W makes kGroup neighbouring elements of a row of y; with
// SwiGLU half as many, each from a row of either product.
__host__ __device__ __forceinline__ int Columns(const FewRowsParams& p) {
  return p.swiglu ? kGroup / 2 : kGroup;
}
__host__ __device__ __forceinline__ int Groups(const FewRowsParams& p) {
  return (static_cast<int>(p.out) + Columns(p) - 1) / Columns(p);
}

// Copies of a warp's groups, turn by turn, one group after another. Rows that
// the last group lacks are those of its last element of y. A lane reads only
// what it copied itself.
template <typename T>
class Requests {
 public:
  __device__ __forceinline__ Requests(const FewRowsParams& p, int group,
                                      int step, uint4* slots)
      : weight_(static_cast<const T*>(p.weight) + Lane()),
        in_(static_cast<int>(p.in)),
        out_(static_cast<int>(p.out)),
        columns_(Columns(p)),
        groups_(Groups(p)),
        group_(group),
        step_(step),
        slots_(slots + threadIdx.x) {
#pragma unroll
    for (int turn = 0; turn < kAhead; ++turn) Next();
  }

  // This lane's pieces of the oldest turn, once they are there.
  __device__ __forceinline__ const T* Oldest(int row) const {
    return reinterpret_cast<const T*>(Slot(row));
  }

  // Requests another turn in place of the oldest.
  __device__ __forceinline__ void Next() {
    if (group_ < groups_) {
      if (begin_ + Lane() < in_) {
#pragma unroll
        for (int row = 0; row < kGroup; ++row) {
          CopyAsync(SharedAddress(Slot(row)),
                    weight_ + int64_t{Row(row)} * in_ + begin_);
        }
      }
      begin_ += kTurn;
      if (begin_ >= in_) {
        begin_ = 0;
        group_ += step_;
      }
    }
    EndTurn();
    slot_ = slot_ + 1 < kAhead ? slot_ + 1 : 0;
  }

 private:
  __device__ __forceinline__ static int Lane() {
    return static_cast<int>(threadIdx.x) % device::kWarp * kElements;
  }
  __device__ __forceinline__ uint4* Slot(int row) const {
    return slots_ + (slot_ * kGroup + row) * kThreads;
  }
  // The row of W of the group's row `row`.
  __device__ __forceinline__ int Row(int row) const {
    const bool second = row >= columns_;  // SwiGLU's other product
    const int column = group_ * columns_ + (second ? row - columns_ : row);
    return min(column, out_ - 1) + (second ? out_ : 0);
  }

  const T* const weight_;
  const int in_, out_, columns_, groups_;
  int group_;
  const int step_;
  uint4* const slots_;
  int begin_ = 0, slot_ = 0;
};

// Adds the products of a turn's pieces of W with those of each row of x.
template <typename T, int kRows>
__device__ __forceinline__ void AddProducts(const Requests<T>& requests,
                                            const T* x, int rows, int in,
                                            float (&sums)[kRows][kGroup]) {
  float weights[kGroup][kElements];
#pragma unroll
  for (int m = 0; m < kGroup; ++m) {
    device::Eight<T>(requests.Oldest(m)).ToFloats(weights[m]);
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    if (row >= rows) break;
    float values[kElements];
    device::Eight<T>(x + row * in).ToFloats(values);
#pragma unroll
    for (int m = 0; m < kGroup; ++m) {
      float sum = 0;  // a partial sum: more accurate for long rows
#pragma unroll
      for (int e = 0; e < kElements; ++e) sum += weights[m][e] * values[e];
      sums[row][m] += sum;
    }
  }
}

// x times the gain of the norm into shared memory. Returns this thread's part
// of the sum of squares of x. Latency counts: it loads all of a row of up to
// 4,096 elements at once.
template <typename T, typename X>
__device__ __forceinline__ float MultiplyByGain(const X* x, const float* gain,
                                                int in, T* to) {
  constexpr int kAtOnce = 2, kStep = kThreads * kElements;
  float squares = 0;
  for (int begin = static_cast<int>(threadIdx.x) * kElements; begin < in;
       begin += kAtOnce * kStep) {
    float values[kAtOnce][kElements], gains[kAtOnce][kElements];
#pragma unroll
    for (int a = 0; a < kAtOnce; ++a) {
      const int i = begin + a * kStep;
      if (i >= in) break;
      device::Load(x + i, values[a]);
      device::Load(gain + i, gains[a]);
    }
#pragma unroll
    for (int a = 0; a < kAtOnce; ++a) {
      const int i = begin + a * kStep;
      if (i >= in) break;
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        squares += values[a][e] * values[a][e];
        values[a][e] *= gains[a][e];
      }
      device::Store(to + i, values[a]);
    }
  }
  return squares;
}

// Puts what the product multiplies, [rows, in], into shared memory. The
// remaining factor of a norm, 1 / rms of each row, is applied to y.
template <typename T, int kRows>
__device__ __forceinline__ void Prepare(const FewRowsParams& p, T* to,
                                        float (&factors)[kRows]) {
  __shared__ float squares[kRows][kWarps];
  if (p.gain == nullptr) {
    const T* const from = static_cast<const T*>(p.x);
    for (int64_t i = threadIdx.x * kElements; i < p.rows * p.in;
         i += kThreads * kElements) {
      CopyAsync(SharedAddress(to + i), from + i);
    }
    EndTurn();
    WaitForTurns<0>();
  } else {
    for (int row = 0; row < p.rows; ++row) {
      const int in = static_cast<int>(p.in), begin = row * in;
      const float sum = device::WarpSum(
          p.x_type == FloatType::kFloat
              ? MultiplyByGain(static_cast<const float*>(p.x) + begin, p.gain,
                               in, to + begin)
              : MultiplyByGain(static_cast<const T*>(p.x) + begin, p.gain, in,
                               to + begin));
      if (threadIdx.x % device::kWarp == 0) {
        squares[row][threadIdx.x / device::kWarp] = sum;
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    factors[row] = 1;
    if (p.gain == nullptr || row >= p.rows) continue;
    float sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += squares[row][warp];
    factors[row] = rsqrtf(sum / static_cast<float>(p.in) + p.eps);
  }
}

// The element of y that a lane writes of a warp's group: one of kRows kGroup
// lanes each. Reads the residual at once: at the end, the load would be waited
// for.
template <typename T, typename Y>
class Element {
 public:
  __device__ __forceinline__ Element(const FewRowsParams& p, int group)
      : swiglu_(p.swiglu) {
    const int lane = static_cast<int>(threadIdx.x) % device::kWarp;
    const int row = lane / kGroup, m = lane % kGroup;
    const int column = group * Columns(p) + m;
    if (row >= p.rows || m >= Columns(p) || column >= p.out) return;
    const int64_t element = row * p.out + column;
    y_ = static_cast<Y*>(p.y) + element;
    if (p.residual == nullptr) return;
    adds_ = true;
    residual_ = static_cast<const Y*>(p.residual)[element];
  }

  // The product of a row of x with the group's row m of W, in all lanes.
  __device__ __forceinline__ void Take(int row, int m, float product) {
    const int lane = static_cast<int>(threadIdx.x) % device::kWarp;
    if (lane == row * kGroup + m) value_ = product;
    if (lane == row * kGroup + m - kGroup / 2) second_ = product;
  }

  __device__ __forceinline__ void Write() const {
    if (y_ == nullptr) return;
    float value = value_;
    if (swiglu_) {
      const float a = device::Rounded<T>(value),
                  b = device::Rounded<T>(second_);
      value = a / (1 + device::Exp<T>(-a)) * b;
    } else if (adds_) {
      value = device::ToFloat(residual_) + device::Rounded<T>(value);
    }
    *y_ = device::FromFloat<Y>(value);
  }

 private:
  const bool swiglu_;
  bool adds_ = false;
  Y* y_ = nullptr;  // null: none
  Y residual_;
  float value_ = 0, second_ = 0;  // second_: of SwiGLU's other product
};

template <typename T, typename Y, int kRows>
__global__ void __launch_bounds__(kThreads, 2)
    FewRows(const __grid_constant__ FewRowsParams p) {
  device::LetNextKernelBegin();
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % device::kWarp, in = static_cast<int>(p.in);
  const int warp = static_cast<int>(threadIdx.x) / device::kWarp;
  const int blocks = static_cast<int>(gridDim.x), groups = Groups(p);
  const int first = static_cast<int>(blockIdx.x) + blocks * warp;
  Requests<T> requests(p, first, blocks * kWarps, shared);
  T* const rows = reinterpret_cast<T*>(shared + kAheadBytes / sizeof(uint4));
  if (p.gain != nullptr) {
    for (int i = threadIdx.x * kElements; i < in; i += kThreads * kElements) {
      device::Prefetch(p.gain + i);
    }
  }
  device::WaitForKernelBefore();
  float factors[kRows];
  Prepare(p, rows, factors);
  const T* const x = rows + lane * kElements;
  for (int group = first; group < groups; group += blocks * kWarps) {
    Element<T, Y> element(p, group);
    float sums[kRows][kGroup] = {};
    for (int begin = 0; begin < in; begin += kTurn) {
      WaitForTurns<kAhead - 1>();
      if (begin + lane * kElements < in) {
        AddProducts(requests, x + begin, p.rows, in, sums);
      }
      requests.Next();
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= p.rows) break;
#pragma unroll
      for (int m = 0; m < kGroup; ++m) {
        element.Take(row, m, device::WarpSum(sums[row][m]) * factors[row]);
      }
    }
    element.Write();
  }
}

template <typename T, typename Y>
cudaError_t LaunchWith(const FewRowsParams& p, cudaStream_t stream) {
  const auto kernel = p.rows == 1   ? FewRows<T, Y, 1>
                      : p.rows == 2 ? FewRows<T, Y, 2>
                                    : FewRows<T, Y, 4>;
  int device = 0, multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&multiprocessors,
                                 cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const size_t shared = kAheadBytes + p.rows * p.in * sizeof(T);
  error = ShareMultiprocessor(kernel, shared);
  if (error != cudaSuccess) return error;
  const int blocks = std::min(multiprocessors, Groups(p));
  return LaunchEarly(kernel, blocks, kThreads, shared, stream, p);
}

}  // namespace

cudaError_t LaunchFewRows(const FewRowsParams& p, cudaStream_t stream) {
  return WithType(p.operands, [&]<typename T>(T) {
    if constexpr (sizeof(T) > 2) {
      return cudaErrorInvalidValue;
    } else {
      return p.y_type == FloatType::kFloat ? LaunchWith<T, float>(p, stream)
                                           : LaunchWith<T, T>(p, stream);
    }
  });
}

}  // namespace tessera
