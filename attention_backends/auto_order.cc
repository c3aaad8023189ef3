#include "attention_backends/auto_order.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/string_view.h"

namespace tessera {
namespace {

struct Exception {
  bool (*applies)(const AttentionProblem& problem);
  absl::string_view first;
  absl::string_view reason;
};

bool IsNarrow(const AttentionProblem& p) {
  return p.dtype == at::kBFloat16 || p.dtype == at::kHalf;
}

// Whether there are more keys than the limit for the mask. FLASH_CUDA stays the
// fastest up to more keys under a causal mask.
bool KeysAbove(const AttentionProblem& p, int64_t causal, int64_t full) {
  return p.t > (p.mask.after == 0 ? causal : full);
}

// Whether TORCH_FLASH is the fastest above head dim 128. It pads to 160, 192,
// 224 and 256, FLASH_CUDA to other multiples, so the two take turns being
// faster.
bool TorchFlashLeads(const AttentionProblem& p) {
  if (p.d <= 152) return KeysAbove(p, 4096, 2048);
  if (p.d <= 160) return false;
  if (p.d <= 192) return KeysAbove(p, 2048, 2048);
  if (p.d <= 224) return false;
  return KeysAbove(p, 2048, 1024);
}

// Whether TORCH_EFFICIENT has work for the whole GPU: its deterministic
// backward runs one CUDA block per head, however long the sequence.
bool EfficientFillsGpu(const AttentionProblem& p) {
  return !(p.deterministic && p.needs_grad) || p.b * p.h * p.d >= 16384;
}

constexpr absl::string_view kUnmeasured =
    "ahead of FLASH_CUDA, which was measured only on compute capability 9.0";

// The first exception that applies is used. COMPILED_FUSED is faster still at
// long sequences (docs/attention_backends.md) but holds a large S x T tensor.
constexpr Exception kExceptions[] = {
    {[](const AttentionProblem& p) {
       return p.compute_capability != 90 && IsNarrow(p);
     },
     "TORCH_FLASH", kUnmeasured},
    {[](const AttentionProblem& p) {
       return p.compute_capability != 90 && p.dtype == at::kFloat;
     },
     "TORCH_EFFICIENT", kUnmeasured},
    {[](const AttentionProblem& p) {
       return IsNarrow(p) && p.d > 128 && TorchFlashLeads(p);
     },
     "TORCH_FLASH",
     "the fastest backend without S x T tensors at this head dim and number of "
     "keys"},
    {[](const AttentionProblem& p) {
       return p.dtype == at::kFloat && p.d > 128 && KeysAbove(p, 128, 127) &&
              EfficientFillsGpu(p);
     },
     "TORCH_EFFICIENT",
     "the fastest backend without S x T tensors in FP32 for head dims above "
     "128 "
     "and more than 128 keys (causal) or at least 128 (full)"},
    {[](const AttentionProblem& p) {
       return p.dtype == at::kFloat && !p.tf32 && p.d > 96 &&
              KeysAbove(p, 1024, 256) && EfficientFillsGpu(p);
     },
     "TORCH_EFFICIENT",
     "the fastest backend without S x T tensors in FP32 for head dims above 96 "
     "and more than 1024 keys (causal) or 256 (full)"},
};

}  // namespace

AutoOrder AutoOrderFor(const AttentionProblem& problem,
                       absl::Span<const AttentionBackend* const> table) {
  AutoOrder order = {.backends = {table.begin(), table.end()}};
  if (!problem.cuda) return order;
  const auto exception = std::find_if(
      std::begin(kExceptions), std::end(kExceptions),
      [&](const Exception& candidate) { return candidate.applies(problem); });
  if (exception == std::end(kExceptions)) return order;
  const auto first = std::find_if(order.backends.begin(), order.backends.end(),
                                  [&](const AttentionBackend* backend) {
                                    return backend->name() == exception->first;
                                  });
  if (first == order.backends.end()) return order;
  std::rotate(order.backends.begin(), first, first + 1);
  order.reason = std::string(exception->reason);
  return order;
}

}  // namespace tessera
