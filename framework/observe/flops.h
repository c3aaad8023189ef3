#ifndef FRAMEWORK_OBSERVE_FLOPS_H_
#define FRAMEWORK_OBSERVE_FLOPS_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace tessera {

struct FlopsShape {
  int64_t parameters = 0;            // all of them
  int64_t embedding_parameters = 0;  // of the token embedding
  bool tied_head = false;            // the embedding is the head's matrix too
  int64_t layers = 0;
  int64_t attention_width = 0;  // query heads * head dim
  int64_t context = 0;          // tokens of a sequence

  // With frozen parameters, of those that multiply (N below): the frozen ones;
  // those that read what no trained one comes before; and the layers whose
  // attention does.
  int64_t frozen = 0;
  int64_t without_input_gradient = 0;
  int64_t forward_only_layers = 0;
};

// Floating-point operations of the model for one token of training, forward
// and backward (Kaplan et al., "Scaling Laws for Neural Language Models", 2020,
// section 2.1; Chowdhery et al., "PaLM", 2022, appendix B):
//
//   6 N + 6 L W T
//
// N counts the parameters without the token embedding, whose look-up
// multiplies nothing; a tied embedding stays in N for the head's product. Each
// takes 2 operations forward and 4 backward. W = attention_width, T = context:
// Q K^T and P V take 4 W T per token and layer forward, twice that backward,
// 12 W T in all, of which a causal mask leaves half. PaLM counts the full
// square; its figures are higher. A frozen parameter takes 2 less, for its own
// gradient; what runs before the first trained one has no backward. Norms,
// softmax, recomputation and the optimizer are not counted.
double TrainingFlopsPerToken(const FlopsShape& shape);

// How a run's matrix products are computed.
enum class ProductKind {
  kFp32,  // no tensor cores
  kTf32,
  kHalf,  // BF16 or FP16 with FP32 accumulation
};

// Peak TFLOP/s, dense, of the GPU that the CUDA runtime calls `device_name`,
// by NVIDIA's data sheet. No value for a name that is not in the table, never
// the nearest: an MFU against a wrong peak is worse than none. The user gives
// such a peak as observe.peak_tflops.
std::optional<double> PeakTflops(absl::string_view device_name,
                                 ProductKind kind);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_FLOPS_H_
