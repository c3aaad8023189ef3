#ifndef TRAINERS_HUGGING_FACE_ARCHITECTURE_H_
#define TRAINERS_HUGGING_FACE_ARCHITECTURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/model_config.pb.h"

namespace tessera {

// The architectures of Hugging Face's transformers that a ModelConfig can
// express, and the names of their tensors. Export and import use the same
// tables.

// Which layers of an architecture may have a sliding window.
enum class HfWindows { kNone, kEveryLayer, kChosenLayers };

struct HfArchitecture {
  absl::string_view name;        // "LlamaForCausalLM"
  absl::string_view model_type;  // "llama"
  ModelConfig::QkNorm qk_norm;
  ModelConfig::NormPlacement norm_placement;
  HfWindows windows;
  absl::string_view ln1, ln2;  // names of a layer's norms
  // Fields of config.json that must be there, because transformers assumes a
  // default for them that is a property of one model.
  std::vector<absl::string_view> required;
};

const std::vector<HfArchitecture>& HfArchitectures();

// The first architecture that computes the same function as `config`.
// Unimplemented names the fields that none of them has.
absl::StatusOr<const HfArchitecture*> HfArchitectureFor(
    const ModelConfig& config);

// The name of a parameter: "layers.3.ffn.w1.weight" is
// "model.layers.3.mlp.gate_proj.weight".
std::string HfTensorName(const HfArchitecture& architecture,
                         absl::string_view parameter);

// The latest tokens that each layer sees; 0: all.
std::vector<int64_t> WindowsOf(const ModelConfig& config);

}  // namespace tessera

#endif  // TRAINERS_HUGGING_FACE_ARCHITECTURE_H_
