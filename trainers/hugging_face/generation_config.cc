#include "trainers/hugging_face/generation_config.h"

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/json.h"
#include "framework/base/json_fields.h"
#include "framework/base/status_macros.h"
#include "trainers/hugging_face/config_json.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr char kEnd[] = "eos_token_id";

std::vector<int64_t> EndTokens(const Json& json, JsonFields* fields) {
  const Json end = json.value(kEnd, Json());
  if (end.is_null()) return {};
  std::vector<int64_t> tokens;
  for (const Json& id : end.is_array() ? end : Json::array({end})) {
    if (!id.is_number_integer() || id < 0) {
      fields->Fail(kEnd, "a token id, a list of token ids or null");
      return {};
    }
    tokens.push_back(id);
  }
  return tokens;
}

absl::StatusOr<GenerationConfig> Read(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  GenerationConfig config{.json = ParseJson(text)};
  JsonFields fields(config.json, path);
  RETURN_IF_ERROR(fields.status());
  config.end_tokens = EndTokens(config.json, &fields);
  RETURN_IF_ERROR(fields.status());
  return config;
}

}  // namespace

Json SpecialTokens(const Json& from) {
  Json tokens;
  for (const char* name : {"bos_token_id", kEnd, "pad_token_id"}) {
    tokens[name] = from.is_null() ? Json() : from.value(name, Json());
  }
  return tokens;
}

absl::StatusOr<GenerationConfig> ReadGenerationConfig(
    const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kGenerationConfigFile);
  if (FileExists(path)) return Read(path);
  const std::string model = absl::StrCat(folder, "/", kHfConfigFile);
  if (!FileExists(model)) return GenerationConfig();
  ASSIGN_OR_RETURN(GenerationConfig config, Read(model));
  config.json = SpecialTokens(config.json);
  return config;
}

}  // namespace tessera
