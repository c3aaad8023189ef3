#ifndef ATTENTION_BACKENDS_ATTENTION_BACKEND_H_
#define ATTENTION_BACKENDS_ATTENTION_BACKEND_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "framework/base/phase_observer.h"
#include "framework/program/value.h"

namespace tessera {

// Shapes: B batch, S query length, T key length, H query heads, G key/value
// heads (H is a multiple of G: query head h reads key head h / (H / G)),
// D head dim.

enum class MaskKind {
  kFull,
  // Query i sees keys j <= i + T - S: aligned at the bottom right, so that the
  // last query sees every key. Rows without a key (S > T) give O = 0,
  // L = -infinity and no gradient.
  kCausal,
};

// What a backend needs to know to accept or refuse; no pointers. Known before
// step 0.
struct AttentionProblem {
  int64_t b = 0, s = 0, t = 0, h = 0, g = 0, d = 0;
  at::ScalarType dtype = at::kFloat;
  // The dtype of the exponentials and their sums. Every backend uses FP32 for
  // FP32 and narrower dtypes and FP64 for FP64; absent means that.
  std::optional<at::ScalarType> softmax;
  MaskKind mask = MaskKind::kCausal;
  bool needs_grad = true;
  bool deterministic = false;
  bool cuda = false;
  // 90 for compute capability 9.0; 0 without a GPU.
  int compute_capability = 0;
};
std::string ToString(const AttentionProblem& problem);

// One call. Strides are arbitrary but for the last, which is 1: Q, K and V may
// be slices of one fused projection.
struct AttentionArgs {
  at::Tensor q_bhsd, k_bgtd, v_bgtd;
  double scale = 1;  // of the scores; 1 / sqrt(D) usually
  MaskKind mask = MaskKind::kCausal;
  // Fills lse_bhs even where the backward has no use for it and a backend has
  // to spend extra passes on it.
  bool wants_lse = false;
  // Equal inputs give equal gradients, bit for bit.
  bool deterministic = false;
  PhaseObserver* phases = nullptr;  // "scores", "softmax", "values"
};

// What a call says of its problem: all but needs_grad and compute_capability.
AttentionProblem ProblemOf(const AttentionArgs& args);

// Tensors that are defined before Forward() are where it is to write, shaped as
// AttentionBackend::Plan() says; it makes the others itself.
struct AttentionOut {
  at::Tensor o_bhsd;  // Q's dtype; stored as [B, S, H, D]
  // L_i = log sum_j exp(scale q_i k_j + mask), FP32 (FP64 for FP64). May be
  // undefined unless AttentionArgs::wants_lse.
  at::Tensor lse_bhs;
  // What else the backward needs; each backend states what it holds.
  std::vector<at::Tensor> saved;
};

// `given`, or uninitialised memory where there is none.
at::Tensor GivenOrEmpty(const at::Tensor& given, at::IntArrayRef sizes,
                        const at::TensorOptions& options);
// The same for out.saved[i].
at::Tensor SavedOrEmpty(const AttentionOut& out, size_t i,
                        at::IntArrayRef sizes,
                        const at::TensorOptions& options);
// The same for out.o_bhsd, stored as [B, S, H, D].
at::Tensor OutputOrEmpty(const AttentionOut& out, const at::Tensor& q_bhsd);

// Written by Backward (=). Allocated by the caller, usually as slices of one
// fused buffer, hence strided like AttentionArgs.
struct AttentionGrads {
  at::Tensor dq_bhsd, dk_bgtd, dv_bgtd;
};

// Bytes beyond inputs, outputs and gradients, as predicted by Plan(); measured
// ones agree within 1 %, but for the forward workspace of TORCH_FLASH over few
// short sequences, which depends on the number of multiprocessors.
struct AttentionMemory {
  // Held from forward to backward besides O: AttentionOut::saved, and L.
  std::vector<TensorType> saved;
  std::optional<TensorType> lse;
  // A library's call returns O and what is held, in memory of its own.
  bool allocates = false;
  int64_t saved_bytes = 0;     // all that is held, O included
  int64_t forward_bytes = 0;   // largest workspace alive during Forward
  int64_t backward_bytes = 0;  // the same for Backward
};

// One way to compute O = softmax(scale Q K^T + M) V and its gradients.
// Stateless and const; knows nothing of autograd. Errors of a call are bugs of
// the caller or out-of-memory: Supports() has said before whether it can run.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  // As a config writes it: "NAIVE".
  virtual absl::string_view name() const = 0;

  // OK, or Unimplemented with the first requirement that `problem` does not
  // meet, in words, and what to change.
  virtual absl::Status Supports(const AttentionProblem& problem) const = 0;

  virtual AttentionMemory Plan(const AttentionProblem& problem) const = 0;

  virtual absl::Status Forward(const AttentionArgs& args,
                               AttentionOut* out) const = 0;

  // `out` as Forward filled it; d_o_bhsd like out.o_bhsd, any strides.
  virtual absl::Status Backward(const AttentionArgs& args,
                                const AttentionOut& out,
                                const at::Tensor& d_o_bhsd,
                                AttentionGrads* grads) const = 0;
};

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_ATTENTION_BACKEND_H_
