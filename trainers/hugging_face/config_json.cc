#include "trainers/hugging_face/config_json.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/file.h"
#include "framework/base/json.h"
#include "framework/base/json_fields.h"
#include "framework/base/status_macros.h"
#include "framework/base/violations.h"
#include "models/model_config.h"

namespace tessera {
namespace {

using Json = nlohmann::json;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// A field of config.json and the one of a proto with the same meaning.
struct Field {
  const char* json;
  const char* proto;
  bool optional = false;  // may be absent: the proto's default
};
constexpr Field kFields[] = {
    {"vocab_size", "vocab_size"},
    {"hidden_size", "d_model"},
    {"intermediate_size", "d_ff"},
    {"num_hidden_layers", "num_layers"},
    {"num_attention_heads", "num_heads"},
    {"num_key_value_heads", "num_kv_heads", true},
    {"head_dim", "head_dim", true},
    {"max_position_embeddings", "context_length"},
    {"rms_norm_eps", "norm_eps"},
    {"tie_word_embeddings", "tied_head", true},
};
constexpr Field kRopeTheta = {"rope_theta", "rope_theta", true};
// The rope_type of the only scaling that we have, and its fields.
constexpr char kLlama3[] = "llama3";
constexpr Field kRopeScaling[] = {
    {"factor", "factor"},
    {"low_freq_factor", "low_freq_factor"},
    {"high_freq_factor", "high_freq_factor"},
    {"original_max_position_embeddings", "original_context_length"}};

// Fields that have one value in all models; absent, too.
const std::pair<const char*, Json> kFixed[] = {
    {"hidden_act", "silu"}, {"attention_bias", false}, {"mlp_bias", false}};

constexpr char kSliding[] = "sliding_attention", kFull[] = "full_attention";

const FieldDescriptor* Find(const Message& message, const Field& field) {
  return message.GetDescriptor()->FindFieldByName(field.proto);
}

void Read(const Field& field, JsonFields* json, Message* to) {
  if (field.optional && !json->Has(field.json)) return;
  const FieldDescriptor* const proto = Find(*to, field);
  const auto* const reflection = to->GetReflection();
  switch (proto->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      reflection->SetInt32(
          to, proto,
          static_cast<int32_t>(
              json->Count(field.json, std::numeric_limits<int32_t>::max())));
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      reflection->SetDouble(to, proto, json->Number(field.json));
      break;
    default:
      reflection->SetBool(to, proto, json->Flag(field.json));
  }
}

void Write(const Field& field, const Message& from, Json* json) {
  const FieldDescriptor* const proto = Find(from, field);
  const auto* const reflection = from.GetReflection();
  Json& to = (*json)[field.json];
  switch (proto->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      to = reflection->GetInt32(from, proto);
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      to = reflection->GetDouble(from, proto);
      break;
    default:
      to = reflection->GetBool(from, proto);
  }
}

absl::Status UnknownArchitecture(const std::string& path,
                                 absl::string_view field, const Json& value) {
  std::vector<absl::string_view> known;
  for (const HfArchitecture& architecture : HfArchitectures()) {
    known.push_back(architecture.name);
  }
  return absl::UnimplementedError(absl::StrCat(
      path, ": ", field, " is ", value.dump(), "; Tessera reads ",
      absl::StrJoin(known, ", "),
      value == "gpt2" ? "; its model has no LayerNorm, biases and learned "
                        "positions, as GPT-2 has"
                      : ""));
}

absl::StatusOr<const HfArchitecture*> ArchitectureOf(const std::string& path,
                                                     const Json& json,
                                                     JsonFields* fields) {
  const std::string model_type = fields->Text("model_type");
  RETURN_IF_ERROR(fields->status());
  const auto found = absl::c_find_if(
      HfArchitectures(), [&](const HfArchitecture& architecture) {
        return architecture.model_type == model_type;
      });
  if (found == HfArchitectures().end()) {
    return UnknownArchitecture(path, "model_type", model_type);
  }
  // Other classes share the model type: classifiers, for example.
  const auto classes = json.find("architectures");
  if (classes != json.end() && !classes->is_null() &&
      *classes != Json::array({std::string(found->name)})) {
    return UnknownArchitecture(path, "architectures", *classes);
  }
  for (const absl::string_view field : found->required) {
    if (!fields->Has(field)) fields->Fail(field, "given");
  }
  return &*found;
}

// Fails if RoPE turns a part of each head only.
void CheckRotatesAll(JsonFields* fields) {
  constexpr char kPartial[] = "partial_rotary_factor";
  if (fields->Has(kPartial) && fields->Number(kPartial) != 1) {
    fields->Fail(kPartial, "1");
  }
}

// Reads RoPE's theta and scaling. Version 4 has the theta beside rope_scaling,
// version 5 has both in rope_parameters. With a mixture, this reads what
// version 5 does: it prefers rope_scaling, and the theta of either object.
void ReadRope(JsonFields* fields, ModelConfig* config) {
  Read(kRopeTheta, fields, config);
  CheckRotatesAll(fields);
  const char* const kObject =
      fields->Has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!fields->Has(kObject)) return;
  JsonFields rope = fields->Object(kObject);
  Read(kRopeTheta, &rope, config);
  CheckRotatesAll(&rope);
  // Version 4.42 and earlier: "type".
  const char* const kType = rope.Has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.Text(kType);
  if (type == kLlama3) {
    for (const Field& field : kRopeScaling) {
      Read(field, &rope, config->mutable_rope_scaling());
    }
  } else if (type != "default") {
    rope.Fail(kType, "\"default\" or \"llama3\"");
  }
}

// Sets the shortest list that repeats to `windows` (0: all tokens).
void SetWindows(const std::vector<int64_t>& windows, ModelConfig* config) {
  if (absl::c_all_of(windows, [](int64_t w) { return w == 0; })) return;
  size_t period = 1;
  const auto repeats = [&] {
    return std::equal(windows.begin() + period, windows.end(), windows.begin());
  };
  while (!repeats()) ++period;
  for (size_t i = 0; i < period; ++i) {
    auto* const window = config->add_attention_window();
    if (windows[i] > 0) window->set_tokens(static_cast<int32_t>(windows[i]));
  }
}

// For each layer whether it has the window; transformers' default if
// layer_types is absent.
std::vector<bool> SlidingLayers(const Json& json, int layers,
                                JsonFields* fields) {
  std::vector<bool> sliding(layers);
  const auto types = json.find("layer_types");
  if (types == json.end()) {
    const int64_t first = fields->Count("max_window_layers");
    for (int i = 0; i < layers; ++i) sliding[i] = i >= first;
    return sliding;
  }
  const auto known = [](const Json& type) {
    return type == kSliding || type == kFull;
  };
  if (!types->is_array() || types->size() != static_cast<size_t>(layers) ||
      !absl::c_all_of(*types, known)) {
    fields->Fail("layer_types",
                 absl::StrCat("an array of ", layers, " strings, each \"",
                              kSliding, "\" or \"", kFull, "\""));
    return sliding;
  }
  for (int i = 0; i < layers; ++i) sliding[i] = (*types)[i] == kSliding;
  return sliding;
}

void ReadWindows(HfWindows kind, const Json& json, JsonFields* fields,
                 ModelConfig* config) {
  if (kind == HfWindows::kNone || !fields->Has("sliding_window")) return;
  std::vector<bool> sliding(config->num_layers(), true);
  if (kind == HfWindows::kChosenLayers) {
    if (!fields->Has("use_sliding_window") ||
        !fields->Flag("use_sliding_window")) {
      return;
    }
    sliding = SlidingLayers(json, config->num_layers(), fields);
  }
  const int64_t tokens =
      fields->Count("sliding_window", std::numeric_limits<int32_t>::max());
  if (tokens == 0) fields->Fail("sliding_window", ">= 1, or null");
  std::vector<int64_t> windows;
  for (const bool has : sliding) windows.push_back(has ? tokens : 0);
  SetWindows(windows, config);
}

void WriteWindows(HfWindows kind, const ModelConfig& config, Json* json) {
  if (kind == HfWindows::kNone) return;
  const std::vector<int64_t> windows = WindowsOf(config);
  const auto first = absl::c_find_if(windows, [](int64_t w) { return w > 0; });
  const bool has = first != windows.end();
  (*json)["sliding_window"] = has ? Json(*first) : Json();
  if (kind == HfWindows::kEveryLayer) return;
  (*json)["use_sliding_window"] = has;
  (*json)["max_window_layers"] = first - windows.begin();
  for (const int64_t window : windows) {
    (*json)["layer_types"].push_back(window > 0 ? kSliding : kFull);
  }
}

// The file's name for a field of ModelConfig.
std::string JsonName(absl::string_view proto) {
  for (const Field& field : kFields) {
    if (proto == field.proto) return field.json;
  }
  return absl::StrCat("its model.", proto);
}

absl::Status Check(const std::string& path, const ModelConfig& config) {
  std::vector<Violation> violations;
  Validate(config, Violations(&violations));
  if (violations.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": ", JsonName(violations[0].path), " ", violations[0].message));
}

// Fails on fields that ask for what this model does not have.
void CheckFixed(const Json& json, JsonFields* fields) {
  for (const auto& [name, value] : kFixed) {
    const auto found = json.find(name);
    if (found != json.end() && *found != value) {
      fields->Fail(name, value.dump());
    }
  }
  if (json.contains("quantization_config")) {
    fields->Fail("quantization_config", "absent: weights are not quantized");
  }
}

}  // namespace

absl::StatusOr<HfModel> ReadHfConfig(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  Json json = ParseJson(text);
  JsonFields given(json, path);
  RETURN_IF_ERROR(given.status());
  HfModel model;
  ASSIGN_OR_RETURN(model.architecture, ArchitectureOf(path, json, &given));
  RETURN_IF_ERROR(given.status());
  // From here on, null is the same as absent.
  for (auto it = json.begin(); it != json.end();) {
    it = it->is_null() ? json.erase(it) : std::next(it);
  }
  JsonFields fields(json, path);
  CheckFixed(json, &fields);
  for (const Field& field : kFields) Read(field, &fields, &model.config);
  ReadRope(&fields, &model.config);
  RETURN_IF_ERROR(fields.status());
  model.config.set_qk_norm(model.architecture->qk_norm);
  model.config.set_norm_placement(model.architecture->norm_placement);
  model.config.set_rope_layout(ModelConfig::HALVED);
  RETURN_IF_ERROR(Check(path, model.config));
  ReadWindows(model.architecture->windows, json, &fields, &model.config);
  RETURN_IF_ERROR(fields.status());
  return model;
}

Json HfConfigJson(const HfArchitecture& architecture, const ModelConfig& config,
                  absl::string_view dtype) {
  Json json = {{"architectures", {std::string(architecture.name)}},
               {"model_type", std::string(architecture.model_type)}};
  ModelConfig explicit_config = config;  // fields that follow from others
  const ModelShape shape = ModelShapeOf(config);
  explicit_config.set_num_kv_heads(static_cast<int32_t>(shape.kv_heads));
  explicit_config.set_head_dim(static_cast<int32_t>(shape.head_dim()));
  for (const Field& field : kFields) Write(field, explicit_config, &json);
  Write(kRopeTheta, config, &json);
  Json& scaling = json["rope_scaling"];
  if (config.rope_scaling().factor() != 1) {
    scaling["rope_type"] = kLlama3;
    for (const Field& field : kRopeScaling) {
      Write(field, config.rope_scaling(), &scaling);
    }
  }
  WriteWindows(architecture.windows, config, &json);
  for (const auto& [name, value] : kFixed) json[name] = value;
  json["torch_dtype"] = std::string(dtype);
  return json;
}

}  // namespace tessera
