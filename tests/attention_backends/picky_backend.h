#ifndef TESTS_ATTENTION_BACKENDS_PICKY_BACKEND_H_
#define TESTS_ATTENTION_BACKENDS_PICKY_BACKEND_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "attention_backends/attention_backend.h"

namespace tessera::testing {

// Refuses everything but head dims that are multiples of 64.
class PickyBackend final : public AttentionBackend {
 public:
  absl::string_view name() const override { return "PICKY"; }
  absl::Status Supports(const AttentionProblem& problem) const override {
    if (problem.deterministic) {
      return absl::UnimplementedError("adds dQ in no fixed order");
    }
    if (problem.d % 64 != 0) {
      return absl::UnimplementedError("head dim must be a multiple of 64");
    }
    return absl::OkStatus();
  }
  AttentionMemory Plan(const AttentionProblem&) const override {
    return {
        .saved_bytes = 1 << 20, .forward_bytes = 0, .backward_bytes = 2 << 20};
  }
  absl::Status Forward(const AttentionArgs&, AttentionOut*) const override {
    return absl::ResourceExhaustedError("picky: no memory");
  }
  absl::Status Backward(const AttentionArgs&, const AttentionOut&,
                        const at::Tensor&, AttentionGrads*) const override {
    return absl::OkStatus();
  }
};

// A problem that PickyBackend refuses and NAIVE supports.
inline AttentionProblem SmallProblem() {
  AttentionProblem problem;
  problem.b = 2;
  problem.s = problem.t = 128;
  problem.h = 4;
  problem.g = 2;
  problem.d = 80;
  return problem;
}

}  // namespace tessera::testing

#endif  // TESTS_ATTENTION_BACKENDS_PICKY_BACKEND_H_
