#ifndef TRAINERS_GENERATION_NEXT_TOKEN_H_
#define TRAINERS_GENERATION_NEXT_TOKEN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "framework/params/parameter_store.h"
#include "framework/program/executor.h"
#include "models/transformer_lm.h"
#include "trainers/plan/run_plan.h"

namespace tessera {

// A model that continues texts, over the parameters of a store.
class NextTokenModel {
 public:
  using Texts = std::vector<std::vector<int64_t>>;  // token ids

  // `plan` and `parameters` outlive the model.
  NextTokenModel(const RunPlan& plan, ParameterStore& parameters);
  ~NextTokenModel();
  NextTokenModel(const NextTokenModel&) = delete;
  NextTokenModel& operator=(const NextTokenModel&) = delete;

  int64_t vocab() const { return plan_.shape.vocab; }

  // The logits, [B, V], of the token after each of B >= 1 texts of the same
  // length >= 1, from its last context tokens. Unimplemented if no attention
  // backend supports that length. If each text is that of the previous call and
  // one more token, only that one is computed, with the keys and values of the
  // others from a cache; beyond the context, where every token's position
  // changes, all are.
  absl::StatusOr<std::vector<float>> LogitsAfter(const Texts& texts);

 private:
  struct Runner;
  // For up to `length` tokens of each of batch_ texts. Throws LibTorch's
  // exceptions.
  absl::StatusOr<Runner*> RunnerFor(int64_t length, CacheUse use);
  absl::StatusOr<NextTokenProgram> ProgramFor(int64_t length, CacheUse use);
  // Whether a program may be launched as a CUDA graph.
  bool MayRecord(const Program& program) const;
  bool Extends(const Texts& texts) const;
  // Makes room for `rows` tokens in the caches of all layers.
  void GrowCaches(int64_t rows, const TensorType& type);
  // The caches now hold `texts`, of which they held all but the last tokens if
  // one `extends` them.
  void Remember(const Texts& texts, bool extends);
  void Forget();

  const RunPlan& plan_;
  ParameterStore& parameters_;
  int64_t batch_ = 0;
  std::map<std::pair<int64_t, CacheUse>, std::unique_ptr<Runner>> runners_;
  std::vector<at::Tensor> caches_;  // by layer
  Texts cached_;                    // the tokens whose rows they hold
};

}  // namespace tessera

#endif  // TRAINERS_GENERATION_NEXT_TOKEN_H_
