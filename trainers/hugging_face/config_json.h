#ifndef TRAINERS_HUGGING_FACE_CONFIG_JSON_H_
#define TRAINERS_HUGGING_FACE_CONFIG_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/model_config.pb.h"
#include "nlohmann/json.hpp"
#include "trainers/hugging_face/architecture.h"

namespace tessera {

// config.json of Hugging Face's transformers.
inline constexpr absl::string_view kHfConfigFile = "config.json";

struct HfModel {
  const HfArchitecture* architecture = nullptr;
  ModelConfig config;  // passes Validate()
};

// Reads the config.json at `path`, as transformers 4 and 5 write it.
// InvalidArgument or Unimplemented names the file and the field: JSON of the
// wrong type, an architecture that this model cannot express, a rope_type that
// it does not have. A field that it does not know has no effect on the weights'
// function.
absl::StatusOr<HfModel> ReadHfConfig(const std::string& path);

// The config.json of `config`, which the architecture expresses, for weights of
// a dtype such as "float32". Its RoPE is HALVED.
nlohmann::json HfConfigJson(const HfArchitecture& architecture,
                            const ModelConfig& config, absl::string_view dtype);

}  // namespace tessera

#endif  // TRAINERS_HUGGING_FACE_CONFIG_JSON_H_
