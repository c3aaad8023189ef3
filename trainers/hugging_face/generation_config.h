#ifndef TRAINERS_HUGGING_FACE_GENERATION_CONFIG_H_
#define TRAINERS_HUGGING_FACE_GENERATION_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tessera {

// generation_config.json, which transformers keeps beside the weights.
inline constexpr absl::string_view kGenerationConfigFile =
    "generation_config.json";

struct GenerationConfig {
  nlohmann::json json;  // an object; null if the folder has none
  // Its eos_token_id, one or several: an instruct model ends its turn with
  // another token than a document.
  std::vector<int64_t> end_tokens;
};

// Reads the file in `folder`; without it the same fields of config.json, as
// transformers does. InvalidArgument names the file and the field.
absl::StatusOr<GenerationConfig> ReadGenerationConfig(
    const std::string& folder);

// The fields of `from`, an object or null, that name special tokens. Those that
// are missing are null, because transformers otherwise assumes a model's own.
nlohmann::json SpecialTokens(const nlohmann::json& from);

}  // namespace tessera

#endif  // TRAINERS_HUGGING_FACE_GENERATION_CONFIG_H_
