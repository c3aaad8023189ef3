#ifndef TRAINERS_GENERATION_NEXT_TOKEN_H_
#define TRAINERS_GENERATION_NEXT_TOKEN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "framework/params/parameter_store.h"
#include "framework/program/executor.h"
#include "models/transformer_lm.h"
#include "trainers/plan/run_plan.h"

namespace tessera {

// A model that continues sequences, over the parameters of a store.
class NextTokenModel {
 public:
  // `plan` and `parameters` outlive the model.
  NextTokenModel(const RunPlan& plan, ParameterStore& parameters);
  ~NextTokenModel();
  NextTokenModel(const NextTokenModel&) = delete;
  NextTokenModel& operator=(const NextTokenModel&) = delete;

  int64_t vocab() const { return plan_.shape.vocab; }

  // The logits, [V], of the token after `tokens` (not empty), from the last
  // context tokens. Unimplemented if no attention backend supports their
  // length. If `tokens` are those of the previous call and one more, only that
  // one is computed, with the keys and values of the others from a cache;
  // beyond the context, where every token's position changes, all are.
  absl::StatusOr<std::vector<float>> LogitsAfter(
      absl::Span<const int64_t> tokens);

 private:
  struct Runner;
  // For up to `length` tokens.
  absl::StatusOr<Runner*> RunnerFor(int64_t length, CacheUse use);
  absl::StatusOr<NextTokenProgram> ProgramFor(int64_t length, CacheUse use);
  bool Extends(absl::Span<const int64_t> tokens) const;
  // Makes room for `rows` tokens in the caches of all layers.
  void GrowCaches(int64_t rows, const TensorType& type);

  const RunPlan& plan_;
  ParameterStore& parameters_;
  std::map<std::pair<int64_t, CacheUse>, std::unique_ptr<Runner>> runners_;
  std::vector<at::Tensor> caches_;  // by layer
  std::vector<int64_t> cached_;     // the tokens whose rows they hold
};

}  // namespace tessera

#endif  // TRAINERS_GENERATION_NEXT_TOKEN_H_
