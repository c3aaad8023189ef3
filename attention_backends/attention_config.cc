#include "attention_backends/attention_config.h"

#include "absl/strings/str_cat.h"

namespace tessera {

void Validate(const AttentionConfig& config, Violations violations) {
  violations.Check(config.backend() != AttentionConfig::UNSPECIFIED, "backend",
                   "must be AUTO or name a backend");
  Validate(config.naive(), violations.In("naive"));
  const int held = config.naive().held_score_tensors();
  violations.Check(
      held == 1 || config.backend() == AttentionConfig::NAIVE,
      "naive.held_score_tensors",
      absl::StrCat(held, " needs backend: NAIVE; backend is ",
                   AttentionConfig::Backend_Name(config.backend())));
}

void Validate(const NaiveConfig& config, Violations violations) {
  const int held = config.held_score_tensors();
  violations.Check(held >= 1 && held <= 3, "held_score_tensors",
                   absl::StrCat("must be 1, 2 or 3; is ", held));
}

BackendRequest BackendRequestOf(const AttentionConfig& config) {
  return {.name = AttentionConfig::Backend_Name(config.backend()),
          .naive_held_score_tensors = config.naive().held_score_tensors()};
}

}  // namespace tessera
