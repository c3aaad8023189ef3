#include "trainers/hugging_face/convert.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/new_folder.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/checkpoint/scalar_type.h"
#include "framework/data/tokenize/tokenizer.h"
#include "models/model_config.h"
#include "models/transformer_lm.h"
#include "nlohmann/json.hpp"
#include "trainers/hugging_face/architecture.h"
#include "trainers/hugging_face/config_json.h"
#include "trainers/hugging_face/generation_config.h"

namespace tessera {
namespace {

constexpr int64_t kPieceElements = int64_t{4} << 20;
constexpr char kTokenizerConfigFile[] = "tokenizer_config.json";

// A tensor to write.
struct Output {
  TensorSpec spec;
  const StoredTensor* from = nullptr;
  // If not 0, the rows of each head of that many change from INTERLEAVED to
  // HALVED.
  int64_t head_dim = 0;
};

// The name of a dtype in config.json.
std::string TorchName(StoredDtype dtype) {
  return dtype == StoredDtype::kF32    ? "float32"
         : dtype == StoredDtype::kBF16 ? "bfloat16"
         : dtype == StoredDtype::kF16  ? "float16"
                                       : "float64";
}

// piece: [heads, head_dim, ...], in the layout of pairs (0, 1), (2, 3), ...
at::Tensor Halved(const at::Tensor& piece) {
  return piece.unflatten(1, {piece.size(1) / 2, 2}).transpose(1, 2);
}

absl::StatusOr<at::Tensor> Converted(const Output& output,
                                     const at::Tensor& piece) {
  const at::Tensor rows = output.head_dim == 0 ? piece : Halved(piece);
  const at::Tensor result =
      rows.contiguous().to(*ScalarTypeOf(output.spec.dtype));
  if (result.isinf().sum().equal(piece.isinf().sum())) return result;
  return absl::InvalidArgumentError(
      absl::StrCat(output.from->path, ": tensor ", output.from->spec.name,
                   " has values beyond the range of ", Name(output.spec.dtype),
                   "; choose another --dtype"));
}

// In pieces of whole heads or elements.
absl::Status WriteTensor(const Output& output, const ConvertOptions& options,
                         SafetensorsWriter* file) {
  const StoredTensor& from = *output.from;
  const int64_t rest = from.spec.shape.size() == 2 ? from.spec.shape[1] : 1;
  at::Tensor units = at::from_blob(
      const_cast<char*>(from.bytes.data()),
      {static_cast<int64_t>(from.bytes.size()) / SizeBytes(from.spec.dtype)},
      *ScalarTypeOf(from.spec.dtype));
  if (output.head_dim != 0) units = units.view({-1, output.head_dim, rest});
  const int64_t count = units.size(0);
  const int64_t most =
      std::max<int64_t>(1, kPieceElements * count / units.numel());
  for (int64_t begin = 0; begin < count; begin += most) {
    if (options.check_stop) RETURN_IF_ERROR(options.check_stop());
    ASSIGN_OR_RETURN(
        const at::Tensor piece,
        Converted(output,
                  units.narrow(0, begin, std::min(most, count - begin))));
    RETURN_IF_ERROR(file->Write(
        {static_cast<const char*>(piece.const_data_ptr()), piece.nbytes()}));
  }
  return absl::OkStatus();
}

absl::Status WriteWeights(const std::vector<Output>& outputs,
                          const SafetensorsMetadata& metadata,
                          const std::string& folder,
                          const ConvertOptions& options) {
  std::vector<TensorSpec> specs;
  std::map<std::string, const Output*> by_name;
  for (const Output& output : outputs) {
    specs.push_back(output.spec);
    by_name[output.spec.name] = &output;
  }
  ASSIGN_OR_RETURN(
      const std::vector<TensorFile> files,
      DivideIntoFiles(kModelFile, std::move(specs), options.max_file_bytes));
  for (const TensorFile& file : files) {
    ASSIGN_OR_RETURN(
        const std::unique_ptr<SafetensorsWriter> writer,
        SafetensorsWriter::Create(absl::StrCat(folder, "/", file.name),
                                  file.tensors, metadata));
    for (const TensorSpec& spec : file.tensors) {
      RETURN_IF_ERROR(StatusFromTorchOr([&] {
        return WriteTensor(*by_name.at(spec.name), options, writer.get());
      }));
    }
    RETURN_IF_ERROR(writer->Finish());
  }
  if (files.size() == 1) return absl::OkStatus();
  return WriteFileAtomically(absl::StrCat(folder, "/", IndexName(kModelFile)),
                             IndexOf(files));
}

// Everything that a folder holds.
struct Contents {
  std::vector<Output> tensors;
  SafetensorsMetadata metadata;
  std::map<std::string, std::string> texts;  // by file name
};

absl::Status WriteFolder(const Contents& contents, const std::string& path,
                         const ConvertOptions& options) {
  ASSIGN_OR_RETURN(NewFolder out, NewFolder::Begin(path));
  RETURN_IF_ERROR(MakeDirectories(out.temporary()));
  RETURN_IF_ERROR(WriteWeights(contents.tensors, contents.metadata,
                               out.temporary(), options));
  for (const auto& [name, text] : contents.texts) {
    RETURN_IF_ERROR(
        WriteFileAtomically(absl::StrCat(out.temporary(), "/", name), text));
  }
  return out.Commit();
}

// The parameters of a model, as `checkpoint` stores them.
absl::StatusOr<std::vector<Output>> Stored(const Checkpoint& checkpoint,
                                           const ModelConfig& config,
                                           const ConvertOptions& options) {
  ASSIGN_OR_RETURN(const StoredTensors* tensors,
                   checkpoint.Tensors(kModelFile));
  ASSIGN_OR_RETURN(const std::vector<ParameterBlockSpec> blocks,
                   LmParameters(ModelShapeOf(config), /*frozen=*/{}));
  std::vector<Output> outputs;
  for (const ParameterBlockSpec& block : blocks) {
    for (const ParameterSpec& parameter : block.members) {
      const StoredTensor* const from = tensors->Find(parameter.name);
      if (from == nullptr || from->spec.shape != parameter.shape ||
          !ScalarTypeOf(from->spec.dtype).has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat(tensors->path(), ": tensor ", parameter.name,
                         from == nullptr ? " is missing"
                         : from->spec.shape != parameter.shape
                             ? " has another shape"
                             : absl::StrCat(" is ", Name(from->spec.dtype)),
                         "; ", checkpoint.config_source(), " asks for floats [",
                         absl::StrJoin(parameter.shape, ", "), "]"));
      }
      outputs.push_back({.spec = from->spec, .from = from});
      if (options.dtype.has_value()) outputs.back().spec.dtype = *options.dtype;
    }
  }
  return outputs;
}

// Whether RoPE turns what the rows of the parameter make.
bool IsRotated(absl::string_view parameter) {
  return absl::StrContains(parameter, ".attn.q_") ||
         absl::StrContains(parameter, ".attn.k_");
}

std::string Text(const nlohmann::json& json) { return json.dump(2) + "\n"; }

// The ids of the one token before a text and of the end of a document. Null: no
// such token, no tokenizer, or one that transformers reads and we do not.
struct SpecialIds {
  nlohmann::json bos, eos;
};

// Adds the tokenizer, if it has transformers' format, and what transformers
// keeps beside it.
absl::StatusOr<SpecialIds> AddTokenizer(const Checkpoint& checkpoint,
                                        Contents* contents) {
  const nlohmann::json& json = checkpoint.tokenizer();
  if (!json.is_object() || !json.contains("model")) {
    LogWarning(
        "there is no tokenizer in what is written: only a tokenizer.json "
        "(byte-level BPE) has a format that transformers reads");
    return SpecialIds();
  }
  contents->texts[std::string(kTokenizerFile)] = json.dump();
  for (const char* name : {kTokenizerConfigFile, "special_tokens_map.json",
                           "chat_template.jinja"}) {
    const std::string path = absl::StrCat(checkpoint.folder(), "/", name);
    if (!FileExists(path)) continue;
    ASSIGN_OR_RETURN(contents->texts[name], ReadFile(path));
  }
  const auto tokenizer = LoadTokenizer(
      TokenizerKind::kByteLevelBpe, json.dump(), checkpoint.tokenizer_source());
  if (!tokenizer.ok()) {
    LogWarning(
        absl::StrCat("the tokenizer is copied, but generate and prepare_data "
                     "cannot use it: ",
                     tokenizer.status().message()));
    return SpecialIds();
  }
  SpecialIds ids = {.eos = (*tokenizer)->eos_id()};
  const std::vector<int32_t> begin = (*tokenizer)->begin_ids();
  if (begin.size() == 1) ids.bos = begin[0];
  return ids;
}

// Makes tokenizer_config.json for a tokenizer without one. Without
// tokenizer_class transformers uses the architecture's class, which may add
// special tokens. Without eos_token lm-eval knows no end of a document; without
// bos_token it begins a text with the end of one.
nlohmann::json TokenizerConfig(const nlohmann::json& tokenizer,
                               const SpecialIds& ids,
                               const ModelConfig& config) {
  nlohmann::json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                         {"model_max_length", config.context_length()}};
  for (const nlohmann::json& token :
       tokenizer.value("added_tokens", nlohmann::json::array())) {
    if (!ids.bos.is_null() && token["id"] == ids.bos) {
      json["bos_token"] = token["content"];
    }
    if (!ids.eos.is_null() && token["id"] == ids.eos) {
      json["eos_token"] = token["content"];
    }
  }
  return json;
}

// generation_config.json: the folder's, with the ids that it lacks.
absl::StatusOr<nlohmann::json> GenerationJson(const std::string& folder,
                                              const SpecialIds& ids) {
  ASSIGN_OR_RETURN(GenerationConfig config, ReadGenerationConfig(folder));
  if (config.json.is_null()) config.json = SpecialTokens(nullptr);
  if (config.end_tokens.empty()) config.json["eos_token_id"] = ids.eos;
  nlohmann::json& bos = config.json["bos_token_id"];
  if (bos.is_null()) bos = ids.bos;
  return config.json;
}

// Returns the widest dtype of the tensors, so that transformers rounds none of
// them.
StoredDtype WidestDtype(const std::vector<Output>& tensors) {
  return absl::c_max_element(tensors,
                             [](const Output& a, const Output& b) {
                               return SizeBytes(a.spec.dtype) <
                                      SizeBytes(b.spec.dtype);
                             })
      ->spec.dtype;
}

}  // namespace

absl::Status ExportModel(const Checkpoint& checkpoint,
                         const ModelConfig& config, const std::string& out,
                         const ConvertOptions& options) {
  ASSIGN_OR_RETURN(const HfArchitecture* const architecture,
                   HfArchitectureFor(config));
  Contents contents = {.metadata = {{"format", "pt"}}};
  ASSIGN_OR_RETURN(contents.tensors, Stored(checkpoint, config, options));
  for (Output& output : contents.tensors) {
    const std::string parameter = output.spec.name;
    output.spec.name = HfTensorName(*architecture, parameter);
    if (config.rope_layout() == ModelConfig::INTERLEAVED &&
        IsRotated(parameter)) {
      output.head_dim = ModelShapeOf(config).head_dim();
    }
  }
  ASSIGN_OR_RETURN(const SpecialIds ids, AddTokenizer(checkpoint, &contents));
  ASSIGN_OR_RETURN(const nlohmann::json generation,
                   GenerationJson(checkpoint.folder(), ids));
  nlohmann::json config_json = HfConfigJson(
      *architecture, config, TorchName(WidestDtype(contents.tensors)));
  config_json.update(SpecialTokens(generation));
  contents.texts[std::string(kHfConfigFile)] = Text(config_json);
  contents.texts[std::string(kGenerationConfigFile)] = Text(generation);
  if (contents.texts.contains(std::string(kTokenizerFile))) {
    contents.texts.emplace(
        kTokenizerConfigFile,
        Text(TokenizerConfig(checkpoint.tokenizer(), ids, config)));
  }
  return WriteFolder(contents, out, options);
}

absl::Status ImportModel(const Checkpoint& folder, const ModelConfig& config,
                         const std::string& out,
                         const ConvertOptions& options) {
  Contents contents;
  ASSIGN_OR_RETURN(contents.tensors, Stored(folder, config, options));
  contents.texts[std::string(kConfigFile)] = folder.config_text();
  RETURN_IF_ERROR(AddTokenizer(folder, &contents).status());
  ASSIGN_OR_RETURN(const GenerationConfig generation,
                   ReadGenerationConfig(folder.folder()));
  if (!generation.json.is_null()) {
    contents.texts[std::string(kGenerationConfigFile)] = Text(generation.json);
  }
  return WriteFolder(contents, out, options);
}

}  // namespace tessera
