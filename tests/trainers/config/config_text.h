#ifndef TESTS_TRAINERS_CONFIG_CONFIG_TEXT_H_
#define TESTS_TRAINERS_CONFIG_CONFIG_TEXT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tessera {

// The fields without a default.
inline constexpr absl::string_view kMinimal = R"(
model { num_layers: 1 d_model: 32 num_heads: 4 d_ff: 64 context_length: 16 }
data { synthetic {} }
training { device: CPU steps: 100 batch_size: 4 }
optimizer { adamw { lr: 1e-3 } }
)";

// The name of the file that WriteConfig() writes.
std::string FileName(absl::string_view name);

// Writes a config to the test's temporary folder and returns its path.
std::string WriteConfig(absl::string_view text,
                        absl::string_view name = "config");

// The lines of the error, without the file's path; empty if the config with
// `overrides` is valid.
std::vector<std::string> Errors(absl::string_view text,
                                const std::vector<std::string>& overrides);

}  // namespace tessera

#endif  // TESTS_TRAINERS_CONFIG_CONFIG_TEXT_H_
