#ifndef ATTENTION_BACKENDS_ATTENTION_CONFIG_H_
#define ATTENTION_BACKENDS_ATTENTION_CONFIG_H_

#include "attention_backends/attention_config.pb.h"
#include "attention_backends/select_backend.h"
#include "framework/base/violations.h"

namespace tessera {

// Add every rule of attention_config.proto that `config` breaks.
// SelectBackend() decides whether a backend can run.
void Validate(const AttentionConfig& config, Violations violations);
void Validate(const NaiveConfig& config, Violations violations);

// `config` must have passed Validate().
BackendRequest BackendRequestOf(const AttentionConfig& config);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_ATTENTION_CONFIG_H_
