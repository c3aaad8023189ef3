#ifndef FRAMEWORK_PRECISION_PRECISION_POLICY_H_
#define FRAMEWORK_PRECISION_PRECISION_POLICY_H_

#include <array>
#include <string>

#include "absl/strings/string_view.h"
#include "c10/core/ScalarType.h"

namespace tessera {

// Classes of work to which a policy assigns a dtype. There are no other casts.
enum class OpClass {
  kMasterWeights,   // updated by the optimizer
  kWeights,         // as products read them: rounded from the master
  kMatmul,          // operands and results of linear layers
  kAttention,       // Q, K, V, O; the scores' storage
  kSoftmax,         // attention's exponentials and sums
  kNormStatistics,  // RMSNorm's mean square and its gain
  kResidual,        // the residual stream and its gradient
  kActivation,      // SwiGLU's and the norms' results
  kLogits,          // the head's result as stored
  kLoss,            // log-softmax, negative log-likelihood and their sums
  kGradient,        // the flat gradient buffer
  kReduction,       // gradient norm, all-reduced scalars
  kOptimizerState,  // first and second moments
};
inline constexpr int kNumOpClasses =
    static_cast<int>(OpClass::kOptimizerState) + 1;
absl::string_view OpClassName(OpClass op);

// The modes; precision_config.proto says what they mean.
enum class PrecisionMode { kFp32, kTf32, kBf16, kFp16, kBf16Pure };
absl::string_view PrecisionModeName(PrecisionMode mode);  // "BF16_PURE"

// The dtype in which work on tensors of `storage` computes and accumulates:
// FP64 for FP64, otherwise FP32.
inline at::ScalarType ArithmeticDtype(at::ScalarType storage) {
  return storage == at::kDouble ? at::kDouble : at::kFloat;
}

// The dtype of each class of work; docs/precision.md has the table, generated
// from this class. A value, resolved once from the config.
//
// BF16 and FP16 give the numbers of torch.autocast without its casts: weights
// are rounded once, when the optimizer writes them.
class PrecisionPolicy {
 public:
  PrecisionPolicy() : PrecisionPolicy(PrecisionMode::kFp32) {}
  // With `fp32_gradients` the gradient buffer, into which products accumulate,
  // is FP32. Otherwise it has the compute dtype, with the rounding of autocast.
  explicit PrecisionPolicy(PrecisionMode mode, bool fp32_gradients = false);

  // Policies outside of the modes, for tests and experiments: one dtype for
  // every class, and a copy with one class changed.
  static PrecisionPolicy Uniform(at::ScalarType dtype);
  PrecisionPolicy With(OpClass op, at::ScalarType dtype) const;

  at::ScalarType operator[](OpClass op) const {
    return dtypes_[static_cast<int>(op)];
  }
  absl::string_view name() const { return PrecisionModeName(mode_); }
  // FP32 products may round their operands to TF32 (10 bits of mantissa).
  bool allows_tf32() const { return mode_ == PrecisionMode::kTf32; }
  bool scales_loss() const { return mode_ == PrecisionMode::kFp16; }

  // Sets LibTorch's process-wide switches (TF32, reduced-precision reductions)
  // to match the policy. Call it once, before the first product.
  void ApplyToLibTorch() const;

 private:
  PrecisionMode mode_ = PrecisionMode::kFp32;
  std::array<at::ScalarType, kNumOpClasses> dtypes_;
};

// The table of docs/precision.md: a row per op class, a column per mode.
std::string PrecisionTableMarkdown();

}  // namespace tessera

#endif  // FRAMEWORK_PRECISION_PRECISION_POLICY_H_
