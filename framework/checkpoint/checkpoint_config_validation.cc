#include "framework/checkpoint/checkpoint_config_validation.h"

#include "absl/strings/str_cat.h"

namespace tessera {

void Validate(const CheckpointConfig& config, Violations violations) {
  violations.Check(
      !config.has_every_steps() || config.every_steps() >= 1, "every_steps",
      absl::StrCat("must be >= 1; is ", config.every_steps(),
                   "; remove the field for one checkpoint at the end"));
  violations.Check(config.keep_last() >= 1, "keep_last",
                   absl::StrCat("must be >= 1; is ", config.keep_last()));
  violations.Check(
      !config.has_keep_every_steps() || config.keep_every_steps() >= 1,
      "keep_every_steps",
      absl::StrCat("must be >= 1; is ", config.keep_every_steps(),
                   "; remove the field to keep only the newest"));
}

}  // namespace tessera
