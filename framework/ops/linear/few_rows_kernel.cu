#include <algorithm>

#include "framework/cuda/eight.cuh"
#include "framework/cuda/kernel.cuh"
#include "framework/ops/linear/few_rows_kernel.h"

// Bound by reading W. One thread block on each multiprocessor loops over rows
// of W. Each of its warps reads two at a time, and the block keeps 80 KiB in
// flight with cp.async: register loads would need as much space in L1. It
// begins before it waits for x, so that memory stays busy while the previous
// kernel, on the other half of the multiprocessor, finishes.

namespace tessera {
namespace {

constexpr int kWarps = 16, kThreads = kWarps * device::kWarp;
constexpr int kElements = device::Eight<float>::kElements;  // of a lane
constexpr int kTurn = device::kWarp * kElements;            // of a warp
constexpr int kPair = 2;                                    // rows of W
constexpr int kAhead = 5;                                   // turns
constexpr size_t kAheadBytes = sizeof(uint4) * kAhead * kPair * kThreads;

__device__ __forceinline__ void CopyAsync(uint4* to, const void* from) {
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared),
               "l"(from)
               : "memory");
}
__device__ __forceinline__ void EndTurn() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until the copies of the oldest of kAhead turns have arrived.
__device__ __forceinline__ void WaitForTurn() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kAhead - 1) : "memory");
}

// Pairs of rows of W: with SwiGLU those of the two products that make an
// element of y, else neighbours, of which the last one may have only a first.
__host__ __device__ __forceinline__ int64_t Pairs(const FewRowsParams& p) {
  return p.swiglu ? p.out : (p.out + 1) / kPair;
}

// Copies of a warp's pairs, turn by turn, one pair after another; of a row
// alone twice. A lane reads only what it copied itself.
template <typename T>
class Requests {
 public:
  __device__ __forceinline__ Requests(const FewRowsParams& p, int64_t pair,
                                      int64_t step, uint4* slots)
      : p_(p), pair_(pair), step_(step), slots_(slots + threadIdx.x) {
    Point();
#pragma unroll
    for (int turn = 0; turn < kAhead; ++turn) Next();
  }

  // This lane's pieces of the oldest turn, once they are there.
  __device__ __forceinline__ const T* Oldest(int row) const {
    return reinterpret_cast<const T*>(slots_ +
                                      (slot_ * kPair + row) * kThreads);
  }

  // Requests another turn in place of the oldest.
  __device__ __forceinline__ void Next() {
    if (pair_ < Pairs(p_)) {
      if (begin_ + Lane() < p_.in) {
#pragma unroll
        for (int row = 0; row < kPair; ++row) {
          CopyAsync(slots_ + (slot_ * kPair + row) * kThreads,
                    rows_[row] + begin_);
        }
      }
      begin_ += kTurn;
      if (begin_ >= p_.in) {
        begin_ = 0;
        pair_ += step_;
        Point();
      }
    }
    EndTurn();
    slot_ = slot_ + 1 < kAhead ? slot_ + 1 : 0;
  }

 private:
  __device__ __forceinline__ static int Lane() {
    return static_cast<int>(threadIdx.x) % device::kWarp * kElements;
  }
  __device__ __forceinline__ void Point() {
    const int64_t first = p_.swiglu ? pair_ : kPair * pair_;
    const int64_t second =
        p_.swiglu ? p_.out + pair_ : min(first + 1, p_.out - 1);
    const T* const w = static_cast<const T*>(p_.weight) + Lane();
    rows_[0] = w + first * p_.in;
    rows_[1] = w + second * p_.in;
  }

  const FewRowsParams& p_;
  int64_t pair_, step_;
  uint4* slots_;
  const T* rows_[kPair];
  int begin_ = 0, slot_ = 0;
};

// Adds the products of a turn's pieces of W with those of each row of x.
template <typename T, int kRows>
__device__ __forceinline__ void AddProducts(const Requests<T>& requests,
                                            const T* x, int rows, int64_t in,
                                            float (&sums)[kRows][kPair]) {
  float weights[kPair][kElements];
#pragma unroll
  for (int m = 0; m < kPair; ++m) {
    device::Eight<T>(requests.Oldest(m)).ToFloats(weights[m]);
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    if (row >= rows) break;
    float values[kElements];
    device::Eight<T>(x + row * in).ToFloats(values);
#pragma unroll
    for (int m = 0; m < kPair; ++m) {
      float sum = 0;  // a partial sum: more accurate for long rows
#pragma unroll
      for (int e = 0; e < kElements; ++e) sum += weights[m][e] * values[e];
      sums[row][m] += sum;
    }
  }
}

// x times the gain of the norm into shared memory. Returns this thread's part
// of the sum of squares of x.
template <typename T, typename X>
__device__ __forceinline__ float MultiplyByGain(const X* x, const float* gain,
                                                int64_t in, T* to) {
  float squares = 0;
  for (int64_t i = threadIdx.x * kElements; i < in; i += kThreads * kElements) {
    float values[kElements], gains[kElements];
    device::Load(x + i, values);
    device::Load(gain + i, gains);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      squares += values[e] * values[e];
      values[e] *= gains[e];
    }
    device::Store(to + i, values);
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
      device::Eight<T>(from + i).StoreTo(to + i);
    }
  } else {
    for (int row = 0; row < p.rows; ++row) {
      const int64_t begin = row * p.in;
      const float sum = device::WarpSum(
          p.x_type == FloatType::kFloat
              ? MultiplyByGain(static_cast<const float*>(p.x) + begin, p.gain,
                               p.in, to + begin)
              : MultiplyByGain(static_cast<const T*>(p.x) + begin, p.gain, p.in,
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

// Writes what a pair of products makes of a row of y.
template <typename T, typename Y>
__device__ __forceinline__ void Write(const FewRowsParams& p, int64_t row,
                                      int64_t pair,
                                      const float (&products)[kPair]) {
  const int64_t column = p.swiglu ? pair : kPair * pair;
  const int64_t element = row * p.out + column;
  Y* const y = static_cast<Y*>(p.y) + element;
  if (p.swiglu) {
    const float a = device::Rounded<T>(products[0]),
                b = device::Rounded<T>(products[1]);
    *y = device::FromFloat<Y>(a / (1 + device::Exp<T>(-a)) * b);
    return;
  }
#pragma unroll
  for (int m = 0; m < kPair; ++m) {
    if (column + m >= p.out) return;
    float value = products[m];
    if (p.residual != nullptr) {
      const Y* const residual = static_cast<const Y*>(p.residual) + element;
      value = device::ToFloat(residual[m]) + device::Rounded<T>(value);
    }
    y[m] = device::FromFloat<Y>(value);
  }
}

template <typename T, typename Y, int kRows>
__global__ void __launch_bounds__(kThreads, 2)
    FewRows(const __grid_constant__ FewRowsParams p) {
  device::LetNextKernelBegin();
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % device::kWarp, in = static_cast<int>(p.in);
  const int warp = static_cast<int>(threadIdx.x) / device::kWarp;
  const int64_t step = int64_t{gridDim.x} * kWarps;
  int64_t pair = blockIdx.x + int64_t{gridDim.x} * warp;
  Requests<T> requests(p, pair, step, shared);
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
  for (; pair < Pairs(p); pair += step) {
    float sums[kRows][kPair] = {};
    for (int begin = 0; begin < in; begin += kTurn) {
      WaitForTurn();
      if (begin + lane * kElements < in) {
        AddProducts(requests, x + begin, p.rows, in, sums);
      }
      requests.Next();
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= p.rows) break;
#pragma unroll
      for (int m = 0; m < kPair; ++m) {
        sums[row][m] = device::WarpSum(sums[row][m]) * factors[row];
      }
      if (lane == 0) Write<T, Y>(p, row, pair, sums[row]);
    }
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
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(multiprocessors, Pairs(p)));
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
