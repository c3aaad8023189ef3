#include "attention_backends/attention_config_validation.h"

namespace tessera {

void Validate(const AttentionConfig& config, Violations violations) {
  violations.Check(config.backend() != AttentionConfig::UNSPECIFIED, "backend",
                   "must be AUTO or name a backend");
}

}  // namespace tessera
