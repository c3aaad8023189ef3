#include <algorithm>

#include "framework/cuda/kernel.cuh"
#include "framework/optim/muon_kernel.h"
#include "framework/params/split_float.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
// Blocks of a matrix; each thread strides over the rest.
constexpr int64_t kMostBlocks = 1 << 16;

// What a thread has of a batch: elements first, first + stride and so on of a
// matrix. The grid has the blocks of one matrix after another.
struct Share {
  unsigned matrix;
  int64_t first, stride;
};
__device__ __forceinline__ Share ShareOf(const MuonBuffers& buffers) {
  const unsigned blocks = gridDim.x / static_cast<unsigned>(buffers.count);
  return {blockIdx.x / blocks,
          int64_t{blockIdx.x % blocks} * kThreads + threadIdx.x,
          int64_t{blocks} * kThreads};
}

// The products between these two kernels take far longer, and a matrix may
// begin anywhere in its block: no vector loads.
template <typename State, typename Grad, typename Direction>
__global__ void __launch_bounds__(kThreads)
    MuonMomentum(const __grid_constant__ MuonBuffers buffers,
                 const __grid_constant__ MuonOptions options) {
  if (*buffers.skips) return;
  const Share share = ShareOf(buffers);
  const MuonMatrix matrix = buffers.matrices[share.matrix];
  const float scale = buffers.coefficients[matrix.group].grad_scale;
  auto* const momentum = static_cast<State*>(buffers.momentum) + matrix.offset;
  const auto* const grad =
      static_cast<const Grad*>(buffers.grad) + matrix.offset;
  auto* const direction =
      static_cast<Direction*>(buffers.direction) + share.matrix * buffers.numel;
  for (int64_t i = share.first; i < buffers.numel; i += share.stride) {
    const float g = scale * device::ToFloat(grad[i]);
    const float m =
        UpdateMuonMomentum(device::ToFloat(momentum[i]), g, options);
    momentum[i] = device::FromFloat<State>(m);
    direction[i] = device::FromFloat<Direction>(MuonDirection(m, g, options));
  }
}

// A block for each row.
template <typename State, typename Direction>
__global__ void __launch_bounds__(kThreads)
    MuonRows(const __grid_constant__ MuonBuffers buffers,
             const __grid_constant__ MuonOptions options) {
  if (*buffers.skips) return;
  const int64_t row = blockIdx.x;
  const auto* const x =
      static_cast<const Direction*>(buffers.direction) + row * buffers.cols;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < buffers.cols; i += kThreads) {
    const float element = device::ToFloat(x[i]);
    squares += element * element;
  }
  __shared__ float scratch[device::kWarp];
  squares = device::BlockSum(squares, scratch);
  if (threadIdx.x > 0) return;
  State* const moment = static_cast<State*>(buffers.row_moments) +
                        buffers.matrices[row / buffers.rows].rows +
                        row % buffers.rows;
  const float v =
      UpdateRowMoment(device::ToFloat(*moment),
                      squares / static_cast<float>(buffers.cols), options);
  *moment = device::FromFloat<State>(v);
  const float scale = RowScale(v);
  buffers.row_scales[row] = scale;
  buffers.row_squares[row] = scale * scale * squares;
}

template <typename State, typename Rounded, typename Direction>
__global__ void __launch_bounds__(kThreads)
    MuonWeights(const __grid_constant__ MuonBuffers buffers,
                const __grid_constant__ MuonOptions options) {
  if (*buffers.skips) return;
  const Share share = ShareOf(buffers);
  const MuonMatrix matrix = buffers.matrices[share.matrix];
  const AdamWCoefficients c = buffers.coefficients[matrix.group];
  const auto* const direction =
      static_cast<const Direction*>(buffers.direction) +
      share.matrix * buffers.numel;
  const auto updated = [&](float weight, int64_t i) {
    float x = device::ToFloat(direction[i]);
    if (buffers.row_scales != nullptr) {
      x *= buffers.row_scales[share.matrix * buffers.rows + i / buffers.cols];
    }
    return UpdateMuonWeight(weight, x, c, options, matrix.ratio);
  };
  for (int64_t i = share.first; i < buffers.numel; i += share.stride) {
    const int64_t at = matrix.weights + i;
    if (matrix.split) {
      const SplitFloat x = SplitInHalves(
          updated(JoinHalves({buffers.high[at], buffers.low[at]}), i));
      buffers.high[at] = x.high;
      buffers.low[at] = x.low;
      continue;
    }
    State* const weight = static_cast<State*>(buffers.master) + at;
    const float x = updated(device::ToFloat(*weight), i);
    *weight = device::FromFloat<State>(x);
    if (matrix.shadow >= 0) {
      static_cast<Rounded*>(buffers.shadow)[matrix.shadow + i] =
          device::FromFloat<Rounded>(x);
    }
  }
}

unsigned GridOf(const MuonBuffers& buffers) {
  const int64_t blocks = (buffers.numel + kThreads - 1) / kThreads;
  return static_cast<unsigned>(std::min(blocks, kMostBlocks) * buffers.count);
}

}  // namespace

cudaError_t LaunchMuonMomentum(const MuonBuffers& buffers,
                               const MuonOptions& options,
                               cudaStream_t stream) {
  return WithType(buffers.state, [&]<typename State>(State) {
    return WithType(buffers.grad_dtype, [&]<typename Grad>(Grad) {
      return WithType(
          buffers.direction_dtype, [&]<typename Direction>(Direction) {
            MuonMomentum<State, Grad, Direction>
                <<<GridOf(buffers), kThreads, 0, stream>>>(buffers, options);
            return cudaGetLastError();
          });
    });
  });
}

cudaError_t LaunchMuonRows(const MuonBuffers& buffers,
                           const MuonOptions& options, cudaStream_t stream) {
  const auto grid = static_cast<unsigned>(buffers.rows * buffers.count);
  return WithType(buffers.state, [&]<typename State>(State) {
    return WithType(buffers.direction_dtype,
                    [&]<typename Direction>(Direction) {
                      MuonRows<State, Direction>
                          <<<grid, kThreads, 0, stream>>>(buffers, options);
                      return cudaGetLastError();
                    });
  });
}

cudaError_t LaunchMuonWeights(const MuonBuffers& buffers,
                              const MuonOptions& options, cudaStream_t stream) {
  return WithType(buffers.state, [&]<typename State>(State) {
    return WithType(buffers.rounded_dtype, [&]<typename Rounded>(Rounded) {
      return WithType(
          buffers.direction_dtype, [&]<typename Direction>(Direction) {
            MuonWeights<State, Rounded, Direction>
                <<<GridOf(buffers), kThreads, 0, stream>>>(buffers, options);
            return cudaGetLastError();
          });
    });
  });
}

}  // namespace tessera
