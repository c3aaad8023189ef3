#ifndef TRAINERS_GENERATION_NEXT_TOKEN_H_
#define TRAINERS_GENERATION_NEXT_TOKEN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "framework/params/parameter_store.h"
#include "framework/program/executor.h"
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
  // length.
  absl::StatusOr<std::vector<float>> LogitsAfter(
      absl::Span<const int64_t> tokens);

 private:
  struct Runner;
  absl::StatusOr<Runner*> RunnerFor(int64_t length);

  const RunPlan& plan_;
  ParameterStore& parameters_;
  std::map<int64_t, std::unique_ptr<Runner>> runners_;  // by length
};

}  // namespace tessera

#endif  // TRAINERS_GENERATION_NEXT_TOKEN_H_
