#include "trainers/hugging_face/hf_folder.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "google/protobuf/text_format.h"
#include "models/model_config.h"
#include "models/transformer_lm.h"
#include "trainers/config/run_config.pb.h"
#include "trainers/hugging_face/config_json.h"

namespace tessera {
namespace {

constexpr absl::string_view kHead = "lm_head.weight";

// Tensors of older files that follow from the config or from other tensors.
bool IsRedundant(absl::string_view name, const ModelConfig& config) {
  return absl::EndsWith(name, ".rotary_emb.inv_freq") ||
         (config.tied_head() && name == kHead);
}

absl::Status CheckTensor(const StoredTensors& tensors, const std::string& name,
                         const ParameterSpec& parameter) {
  const StoredTensor* const tensor = tensors.Find(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensors.path(), " has no tensor ", name, ", which ",
                     kHfConfigFile, " asks for"));
  }
  if (tensor->spec.shape == parameter.shape) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      tensor->path, ": tensor ", name, " is [",
      absl::StrJoin(tensor->spec.shape, ", "), "]; ", kHfConfigFile,
      " asks for [", absl::StrJoin(parameter.shape, ", "), "]"));
}

// transformers does not tie a head that is stored and differs.
absl::Status CheckTiedHead(const HfModel& model, const StoredTensors& tensors) {
  const StoredTensor* const head = tensors.Find(kHead);
  const StoredTensor* const embedding =
      tensors.Find("model.embed_tokens.weight");
  if (!model.config.tied_head() || head == nullptr || embedding == nullptr ||
      (head->spec.dtype == embedding->spec.dtype &&
       head->spec.shape == embedding->spec.shape &&
       head->bytes == embedding->bytes)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      head->path, ": tensor ", kHead, " differs from the embedding, but ",
      kHfConfigFile, " has tie_word_embeddings: true; set it to false there"));
}

// The tensors of a file by our names.
absl::StatusOr<StoredTensors> Renamed(const HfModel& model,
                                      const StoredTensors& tensors) {
  ASSIGN_OR_RETURN(const std::vector<ParameterBlockSpec> blocks,
                   LmParameters(ModelShapeOf(model.config), /*frozen=*/{}));
  std::map<std::string, std::string> names;  // from theirs to ours
  for (const ParameterBlockSpec& block : blocks) {
    for (const ParameterSpec& parameter : block.members) {
      const std::string name =
          HfTensorName(*model.architecture, parameter.name);
      RETURN_IF_ERROR(CheckTensor(tensors, name, parameter));
      names[name] = parameter.name;
    }
  }
  RETURN_IF_ERROR(CheckTiedHead(model, tensors));
  return tensors.Renamed(names, [&](absl::string_view name) {
    return IsRedundant(name, model.config);
  });
}

}  // namespace

bool IsHfFolder(const std::string& path) {
  const auto has = [&](absl::string_view name) {
    return FileExists(absl::StrCat(path, "/", name));
  };
  return has(kHfConfigFile) && !has(kConfigFile) && !has(kManifestFile);
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenHfFolder(
    const std::string& path) {
  ASSIGN_OR_RETURN(const HfModel model,
                   ReadHfConfig(absl::StrCat(path, "/", kHfConfigFile)));
  RunConfig config;
  *config.mutable_model() = model.config;
  std::string text;
  google::protobuf::TextFormat::PrintToString(config, &text);
  return Checkpoint::OpenForeign(
      path, {std::string(kHfConfigFile), text},
      [&](const StoredTensors& tensors) { return Renamed(model, tensors); });
}

}  // namespace tessera
