#ifndef ATTENTION_BACKENDS_ATTENTION_BACKEND_H_
#define ATTENTION_BACKENDS_ATTENTION_BACKEND_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "attention_backends/key_range.h"
#include "framework/base/phase_observer.h"
#include "framework/program/value.h"

namespace tessera {

struct ProductChoices;

// Shapes: B batch, S query length, T key length, H query heads, G key/value
// heads (H is a multiple of G: query head h reads key head h / (H / G)),
// D head dim.

// Which keys a query sees, in its own document. Query i stands at key i + T -
// S, so that the last query stands at the last key, and sees that key, `before`
// keys before it and `after` keys after it. Rows without a key give O = 0, L =
// -infinity and no gradient.
struct MaskSpec {
  int64_t before = kAllKeys, after = kAllKeys;  // >= 0, or kAllKeys

  static constexpr MaskSpec Full() { return {}; }
  static constexpr MaskSpec Causal() { return {.after = 0}; }
  // The `tokens` latest keys, the query's own included.
  static constexpr MaskSpec Window(int64_t tokens) {
    return {.before = tokens - 1, .after = 0};
  }
  // Whether a side has a limit other than the query's own key.
  constexpr bool is_window() const { return before >= 0 || after > 0; }
  friend constexpr bool operator==(MaskSpec, MaskSpec) = default;
};
// The same mask for S queries over T keys, without limits that no row reaches.
// Causal stays causal, also for one query.
MaskSpec WithoutRedundantLimits(MaskSpec mask, int64_t s, int64_t t);
// "causal", "full", "window of 512 keys", "window of 3 keys before and 5
// after".
std::string ToString(MaskSpec mask);

// The properties by which a backend accepts or refuses a call. Holds no
// tensors; known before step 0.
struct AttentionProblem {
  int64_t b = 0, s = 0, t = 0, h = 0, g = 0, d = 0;
  at::ScalarType dtype = at::kFloat;
  // Whether products may round FP32 operands to TF32.
  bool tf32 = false;
  // The dtype requested for the exponentials and their sums. Every backend uses
  // FP64 for FP64 and FP32 otherwise; absent accepts that.
  std::optional<at::ScalarType> softmax;
  MaskSpec mask = MaskSpec::Causal();
  // A score s becomes c tanh(s / c) before it is masked; 0: scores have no cap.
  double soft_cap = 0;
  // Whether each head's sink takes part in its softmax (attention_sinks.h).
  bool sinks = false;
  // Whether a query sees only keys of its own document, AttentionArgs::
  // documents. S = T.
  bool documents = false;
  bool needs_grad = true;
  bool deterministic = false;
  bool cuda = false;
  // 90 for compute capability 9.0; 0 without a GPU.
  int compute_capability = 0;
};
std::string ToString(const AttentionProblem& problem);

// The inputs of one call. The last stride is 1, the others are arbitrary: Q, K
// and V may be slices of one fused projection.
struct AttentionArgs {
  at::Tensor q_bhsd, k_bgtd, v_bgtd;
  double scale = 1;     // of the scores; usually 1 / sqrt(D)
  double soft_cap = 0;  // AttentionProblem
  MaskSpec mask = MaskSpec::Causal();
  // [2, B, S], int32, contiguous: for each token, the first token of its
  // document and the one after its last (DocumentBounds()). Undefined if each
  // sequence is one document.
  at::Tensor documents;
  at::Tensor sinks;  // [H], FP32 (FP64); undefined if heads have none
  // Fill lse_bhs even if the backward pass does not need it and the backend has
  // to spend extra passes on it.
  bool wants_lse = false;
  // Equal inputs give equal gradients, bit for bit.
  bool deterministic = false;
  // Products may round FP32 operands to TF32. For the products that a backend
  // leaves to LibTorch, its own switch decides.
  bool tf32 = false;
  // The algorithms of matrix products; null for cuBLASLt's first proposals.
  const ProductChoices* products = nullptr;
  PhaseObserver* phases = nullptr;  // "scores", "softmax", "values"
};

// The problem that a call poses; needs_grad and compute_capability keep their
// defaults.
AttentionProblem ProblemOf(const AttentionArgs& args);
// Without documents.
AttentionMask<int64_t> MaskOf(const AttentionProblem& problem);
// The share of the S x T pairs of a query and a key that the mask keeps, if
// each sequence is one document. Half of them under a causal mask, which keeps
// S (S + 1) / 2 of S^2.
double VisibleShare(const AttentionProblem& problem);

// Caps scores in place, in FP32 (FP64); leaves them if `soft_cap` is 0.
void ApplySoftCap(double soft_cap, const at::Tensor& scores);
// The workspace that it needs for that many scores of the problem's dtype.
int64_t SoftCapBytes(const AttentionProblem& problem, int64_t scores);
// Replaces capped scores, in FP32 (FP64), by the cap's derivatives at them, 1 -
// tanh^2.
void SoftCapSlopes(double soft_cap, const at::Tensor& capped);

// Forward() writes into the tensors that are already defined, which have the
// shapes of AttentionBackend::Plan(), and allocates the others.
struct AttentionOut {
  at::Tensor o_bhsd;  // Q's dtype; stored as [B, S, H, D]
  // L_i = log sum_j exp(scale q_i k_j + mask), FP32 (FP64 for FP64). May be
  // undefined unless AttentionArgs::wants_lse.
  at::Tensor lse_bhs;
  // Whatever else the backward pass needs; each backend defines its own.
  std::vector<at::Tensor> saved;
};

// `given` if it is defined, else uninitialised memory.
at::Tensor GivenOrEmpty(const at::Tensor& given, at::IntArrayRef sizes,
                        const at::TensorOptions& options);
// out.saved[i] if it is defined, else uninitialised memory.
at::Tensor SavedOrEmpty(const AttentionOut& out, size_t i,
                        at::IntArrayRef sizes,
                        const at::TensorOptions& options);
// out.o_bhsd if it is defined, else uninitialised memory stored as [B, S, H,
// D].
at::Tensor OutputOrEmpty(const AttentionOut& out, const at::Tensor& q_bhsd);

// Overwritten by Backward(). Allocated by the caller, usually as slices of one
// fused buffer, hence strided like AttentionArgs.
struct AttentionGrads {
  at::Tensor dq_bhsd, dk_bgtd, dv_bgtd;
  at::Tensor d_sinks;  // [H], as sinks; undefined if not wanted
};

// Bytes beyond inputs, outputs and gradients, as predicted by Plan(). Measured
// bytes agree within 1 %, except for the forward workspace of TORCH_FLASH over
// few short sequences, which depends on the number of multiprocessors.
struct AttentionMemory {
  // Held from forward to backward in addition to O: AttentionOut::saved and L.
  std::vector<TensorType> saved;
  std::optional<TensorType> lse;
  // True if Forward() returns O and everything held in memory that a library
  // allocates.
  bool allocates = false;
  int64_t saved_bytes = 0;     // everything held, including O
  int64_t forward_bytes = 0;   // largest workspace during Forward()
  int64_t backward_bytes = 0;  // largest workspace during Backward()
};

// OK, or Unimplemented with what to change if the mask is a window or parts
// documents, scores have a soft cap, or heads have sinks.
absl::Status RequirePlain(const AttentionProblem& problem);
// OK, or Unimplemented with what to change if heads have sinks.
absl::Status RequireNoSinks(const AttentionProblem& problem);
// Likewise.
absl::Status RequireDtype(const AttentionProblem& problem,
                          absl::Span<const at::ScalarType> supported);
absl::Status RequireHeadDim(const AttentionProblem& problem, int64_t multiple,
                            int64_t largest);
// Of a GPU; `least` is 80 for 8.0.
absl::Status RequireCapability(const AttentionProblem& problem, int least);

// One way to compute O = softmax(scale Q K^T + M) V and its gradients.
// Stateless and const; independent of autograd. Supports() says beforehand
// whether a call can run, so a call fails only by a bug of the caller or out of
// memory.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  // The name as written in a config, such as "NAIVE".
  virtual absl::string_view name() const = 0;

  // OK, or Unimplemented with a message that names the first requirement that
  // `problem` does not meet and what to change.
  virtual absl::Status Supports(const AttentionProblem& problem) const = 0;

  virtual AttentionMemory Plan(const AttentionProblem& problem) const = 0;

  // The matrix products of Forward() and Backward() whose algorithms
  // AttentionArgs::products can choose. The tensors have no memory.
  virtual std::vector<MatrixProduct> Products(
      const AttentionArgs& args, const AttentionGrads& grads) const {
    return {};
  }

  virtual absl::Status Forward(const AttentionArgs& args,
                               AttentionOut* out) const = 0;

  // `out` is as Forward() filled it. d_o_bhsd has the shape and dtype of
  // out.o_bhsd and any strides.
  virtual absl::Status Backward(const AttentionArgs& args,
                                const AttentionOut& out,
                                const at::Tensor& d_o_bhsd,
                                AttentionGrads* grads) const = 0;
};

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_ATTENTION_BACKEND_H_
