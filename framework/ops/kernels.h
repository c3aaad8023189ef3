#ifndef FRAMEWORK_OPS_KERNELS_H_
#define FRAMEWORK_OPS_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera {

// Launch interfaces of the ops' CUDA kernels: plain pointers and sizes, all on
// the current device. The equations are those of the ops' own headers;
// arithmetic is in FP32. Rows are contiguous; any row length works, and rows
// that are whole multiples of 16 bytes at 16-byte addresses are read and
// written 16 bytes at a time. Launches return the launch's own error.

enum class FloatType { kFloat, kHalf, kBFloat16 };

struct SwiGluParams {
  FloatType type = FloatType::kFloat;
  int64_t rows = 0;
  int64_t width = 0;         // F
  const void* ab = nullptr;  // [rows, 2 F]
  void* h = nullptr;         // [rows, F]; forward writes
  const void* dh = nullptr;  // [rows, F]; backward reads
  void* d_ab = nullptr;      // [rows, 2 F]; backward writes
};
cudaError_t LaunchSwiGluForward(const SwiGluParams& params,
                                cudaStream_t stream);
cudaError_t LaunchSwiGluBackward(const SwiGluParams& params,
                                 cudaStream_t stream);

struct RopeParams {
  FloatType type = FloatType::kFloat;
  bool halved = false;
  bool inverse = false;
  int64_t tokens = 0;     // B S
  int64_t positions = 0;  // S
  int heads = 0, rotated_heads = 0, head_dim = 0;
  const float* cos = nullptr;  // [S, D / 2]
  const float* sin = nullptr;  // [S, D / 2]
  void* x = nullptr;           // [B, S, heads, D]; in place
};
cudaError_t LaunchRope(const RopeParams& params, cudaStream_t stream);

struct RmsNormParams {
  // x and dx; y and dy. Equal, or x_type is kFloat.
  FloatType x_type = FloatType::kFloat, y_type = FloatType::kFloat;
  int64_t rows = 0;
  int64_t width = 0;  // C
  float eps = 0;
  const void* x = nullptr;      // [rows, C]
  const float* gain = nullptr;  // [C]
  void* y = nullptr;            // [rows, C]; forward writes
  float* r = nullptr;           // [rows]; forward writes, backward reads
  const void* dy = nullptr;     // [rows, C]
  void* dx = nullptr;           // [rows, C]; backward writes
  // [row_groups, C]; backward writes the sums of dy * x_hat over rows g,
  // g + row_groups, ...: the gain's gradient once ColumnSums() has added them.
  float* partial_dgain = nullptr;
  int row_groups = 0;
};
// The longest row for which a block can hold its partial sums in FP32: 48 KiB
// less the 32 floats of its reductions.
inline constexpr int64_t kMaxRmsNormBackwardWidth = 48 * 1024 / 4 - 32;
cudaError_t LaunchRmsNormForward(const RmsNormParams& params,
                                 cudaStream_t stream);
cudaError_t LaunchRmsNormBackward(const RmsNormParams& params,
                                  cudaStream_t stream);

struct ColumnSumsParams {
  int rows = 0;
  int64_t width = 0;
  const float* partial = nullptr;  // [rows, width]
  FloatType type = FloatType::kFloat;
  bool accumulate = false;  // += instead of =
  void* sums = nullptr;     // [width]
};
// Adds in an order that depends on `rows` alone.
cudaError_t LaunchColumnSums(const ColumnSumsParams& params,
                             cudaStream_t stream);

struct CrossEntropyParams {
  FloatType type = FloatType::kFloat;
  int64_t rows = 0;
  int64_t vocab = 0;
  const void* logits = nullptr;      // [rows, V]
  const int64_t* targets = nullptr;  // [rows]; -1 takes no part
  // [2, rows], forward writes, backward reads: the row's logsumexp in FP32,
  // and what is missing from it to its value before rounding.
  float* lse = nullptr;
  float* losses = nullptr;       // [rows]; forward writes
  const float* dloss = nullptr;  // one element
  void* dlogits = nullptr;       // [rows, V]; backward writes
};
cudaError_t LaunchCrossEntropyForward(const CrossEntropyParams& params,
                                      cudaStream_t stream);
cudaError_t LaunchCrossEntropyBackward(const CrossEntropyParams& params,
                                       cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_KERNELS_H_
