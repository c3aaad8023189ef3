#include "framework/data/tokenize/tokenizer_json.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/json.h"
#include "framework/base/status_macros.h"
#include "framework/data/tokenize/byte_level.h"
#include "framework/data/tokenize/nfc.h"
#include "framework/data/tokenize/split_pattern.h"

namespace tessera {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
using Names = std::initializer_list<absl::string_view>;

constexpr size_t kMaxStages = 16;
constexpr size_t kMaxAddedTokens = 1 << 16;
constexpr size_t kMaxMerges = 1 << 25;
constexpr size_t kMaxBeginIds = 16;

// `json` in a message, shortened: a file can hold megabytes.
std::string Shown(const Json& json) {
  constexpr size_t kLongest = 60;
  if (json.is_array()) return absl::StrCat("an array of ", json.size());
  if (json.is_object()) return absl::StrCat("an object of ", json.size());
  const std::string text =
      json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  return text.size() <= kLongest
             ? text
             : absl::StrCat(text.substr(0, kLongest), "...");
}

absl::Status Refuse(absl::string_view path, absl::string_view must_be,
                    const Json& is) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, " must be ", must_be, "; is ", Shown(is)));
}

// The value of a field; null if it is missing.
const Json& Field(const Json& object, const std::string& name) {
  static const Json* const missing = new Json;
  const auto found = object.find(name);
  return found == object.end() ? *missing : *found;
}

// An object with no other fields than `allowed`.
absl::Status CheckObject(const Json& json, absl::string_view path,
                         Names allowed) {
  if (!json.is_object()) return Refuse(path, "an object", json);
  for (const auto& [name, value] : json.items()) {
    if (std::find(allowed.begin(), allowed.end(), name) != allowed.end()) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has the field '", name.substr(0, 60),
                     "', which is not supported; supported are ",
                     absl::StrJoin(allowed, ", ")));
  }
  return absl::OkStatus();
}

// The fields `names` of an object are missing, null or one of `empty`.
absl::Status CheckEmpty(const Json& object, absl::string_view path, Names names,
                        Names empty) {
  for (const absl::string_view name : names) {
    const Json& value = Field(object, std::string(name));
    if (value.is_null()) continue;
    const bool is_empty =
        std::any_of(empty.begin(), empty.end(), [&](absl::string_view allowed) {
          return value.dump(-1, ' ', true, Json::error_handler_t::replace) ==
                 allowed;
        });
    if (is_empty) continue;
    return Refuse(path.empty() ? name : absl::StrCat(path, ".", name),
                  absl::StrCat("null", empty.size() == 0 ? "" : " or ",
                               absl::StrJoin(empty, " or ")),
                  value);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Flag(const Json& object, absl::string_view path,
                          const char* name, bool if_missing) {
  const Json& value = Field(object, name);
  if (value.is_null()) return if_missing;
  if (value.is_boolean()) return value.get<bool>();
  return Refuse(absl::StrCat(path, ".", name), "true or false", value);
}

absl::StatusOr<int32_t> TokenId(const Json& json, absl::string_view path) {
  if (json.is_number_unsigned() && json.get<uint64_t>() < kMaxTokenIds) {
    return json.get<int32_t>();
  }
  return Refuse(path,
                absl::StrCat("a whole number in [0, ", kMaxTokenIds - 1, "]"),
                json);
}

// The "type" of a component.
std::string Type(const Json& component) {
  if (!component.is_object()) return "";
  const Json& type = Field(component, "type");
  return type.is_string() ? type.get<std::string>() : "";
}

absl::StatusOr<PreTokenizer::Stage> ReadByteLevel(const Json& json,
                                                  absl::string_view path) {
  RETURN_IF_ERROR(CheckObject(
      json, path, {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  PreTokenizer::Stage stage;
  ASSIGN_OR_RETURN(stage.add_prefix_space,
                   Flag(json, path, "add_prefix_space", true));
  ASSIGN_OR_RETURN(const bool use_regex, Flag(json, path, "use_regex", true));
  if (use_regex) stage.pattern = std::string(kGpt2Pattern);
  return stage;
}

absl::StatusOr<PreTokenizer::Stage> ReadSplit(const Json& json,
                                              const std::string& path) {
  RETURN_IF_ERROR(
      CheckObject(json, path, {"type", "pattern", "behavior", "invert"}));
  const Json& pattern = Field(json, "pattern");
  RETURN_IF_ERROR(CheckObject(pattern, path + ".pattern", {"Regex"}));
  const Json& regex = Field(pattern, "Regex");
  if (!regex.is_string() || regex.get_ref<const std::string&>().empty()) {
    return Refuse(path + ".pattern.Regex", "a regular expression", regex);
  }
  const absl::Status compiled =
      SplitPattern::Compile(regex.get_ref<const std::string&>()).status();
  if (!compiled.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".pattern.Regex: ", compiled.message()));
  }
  ASSIGN_OR_RETURN(const bool invert, Flag(json, path, "invert", false));
  const Json& behavior = Field(json, "behavior");
  const bool drops_gaps = behavior == "Removed" && invert;
  if (behavior != "Isolated" && !drops_gaps) {
    return Refuse(path + ".behavior",
                  "Isolated, or Removed with \"invert\": true", behavior);
  }
  return PreTokenizer::Stage{.pattern = regex, .drops_gaps = drops_gaps};
}

absl::StatusOr<std::vector<PreTokenizer::Stage>> ReadPreTokenizer(
    const Json& json) {
  const std::string path = "pre_tokenizer";
  std::vector<PreTokenizer::Stage> stages;
  if (Type(json) == "ByteLevel") {
    ASSIGN_OR_RETURN(stages.emplace_back(), ReadByteLevel(json, path));
    return stages;
  }
  const Json& list =
      Type(json) == "Sequence" ? Field(json, "pretokenizers") : Field(json, "");
  if (!list.is_array() || list.empty() || list.size() > kMaxStages ||
      Type(list.back()) != "ByteLevel") {
    return Refuse(path,
                  absl::StrCat("ByteLevel, or a Sequence of at most ",
                               kMaxStages - 1, " Splits and ByteLevel"),
                  Type(json).empty() ? json : Json(Type(json)));
  }
  for (size_t i = 0; i + 1 < list.size(); ++i) {
    const std::string place = absl::StrCat(path, ".pretokenizers[", i, "]");
    if (Type(list[i]) != "Split") {
      return Refuse(place + ".type", "Split", Json(Type(list[i])));
    }
    ASSIGN_OR_RETURN(stages.emplace_back(), ReadSplit(list[i], place));
  }
  ASSIGN_OR_RETURN(
      stages.emplace_back(),
      ReadByteLevel(list.back(), absl::StrCat(path, ".pretokenizers[",
                                              list.size() - 1, "]")));
  return stages;
}

// Sets `begin_ids` to what {"type": "TemplateProcessing", ...} puts before a
// text:
//   "single": [{"SpecialToken": {"id": "NAME"}}, ..., {"Sequence": ...}, ...]
//   "special_tokens": {"NAME": {"ids": [1, ...]}}
absl::Status ReadTemplate(const Json& json, const std::string& path,
                          TokenizerJson* tokenizer) {
  const Json& single = Field(json, "single");
  if (!single.is_array()) {
    return Refuse(path + ".single", "a list", single);
  }
  if (!tokenizer->begin_ids.empty()) {
    return Refuse(path + ".type", "of the only template", Field(json, "type"));
  }
  for (const Json& piece : single) {
    if (piece.contains("Sequence")) break;
    const Json& name = Field(Field(piece, "SpecialToken"), "id");
    if (!name.is_string()) {
      return Refuse(path + ".single", "made of SpecialTokens and Sequences",
                    piece);
    }
    const std::string place =
        absl::StrCat(path, ".special_tokens[", Shown(name), "].ids");
    const Json& ids = Field(
        Field(Field(json, "special_tokens"), name.get<std::string>()), "ids");
    if (!ids.is_array()) return Refuse(place, "a list of ids", ids);
    for (const Json& id : ids) {
      ASSIGN_OR_RETURN(tokenizer->begin_ids.emplace_back(), TokenId(id, place));
      if (tokenizer->begin_ids.size() > kMaxBeginIds) {
        return Refuse(
            path, absl::StrCat("at most ", kMaxBeginIds, " ids before a text"),
            single);
      }
    }
  }
  return absl::OkStatus();
}

// Sets `begin_ids`.
absl::Status ReadPostProcessor(const Json& json, const std::string& path,
                               TokenizerJson* tokenizer) {
  if (json.is_null() || Type(json) == "ByteLevel") return absl::OkStatus();
  if (Type(json) == "TemplateProcessing") {
    return ReadTemplate(json, path, tokenizer);
  }
  const Json& list = Field(json, "processors");
  if (path != "post_processor" || Type(json) != "Sequence" ||
      !list.is_array()) {
    return Refuse(path + ".type",
                  "ByteLevel, TemplateProcessing or a Sequence of them",
                  Type(json).empty() ? json : Json(Type(json)));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    RETURN_IF_ERROR(ReadPostProcessor(
        list[i], absl::StrCat(path, ".processors[", i, "]"), tokenizer));
  }
  return absl::OkStatus();
}

// Token ids by their text in the file.
using Vocabulary = absl::flat_hash_map<absl::string_view, int32_t>;

// Sets `tokens`.
absl::StatusOr<Vocabulary> ReadVocabulary(const Json& json,
                                          TokenizerJson* tokenizer) {
  if (!json.is_object() || json.empty()) {
    return Refuse("model.vocab", "an object of tokens and their ids", json);
  }
  Vocabulary vocabulary;
  vocabulary.reserve(json.size());
  int32_t last = 0;
  for (const auto& [text, value] : json.items()) {
    const std::string path =
        absl::StrCat("model.vocab[", Shown(Json(text)), "]");
    ASSIGN_OR_RETURN(const int32_t id, TokenId(value, path));
    if (text.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
    }
    last = std::max(last, id);
  }
  std::vector<std::string>& tokens = tokenizer->tokens;
  tokens.resize(last + 1);
  for (const auto& [text, value] : json.get_ref<const Json::object_t&>()) {
    std::string& token = tokens[value.get<int32_t>()];
    if (!token.empty()) {
      return Refuse(absl::StrCat("model.vocab[", Shown(Json(text)), "]"),
                    "an id that no other token has", value);
    }
    vocabulary[text] = value.get<int32_t>();
    token = FromByteLevel(text).value_or(text);
  }
  // `tokenizers` would give an added token an id that is in use.
  const auto gap = std::find(tokens.begin(), tokens.end(), "");
  if (gap != tokens.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.vocab must have a token for each id up to its "
                     "largest, ",
                     last, "; has none for ", gap - tokens.begin()));
  }
  return vocabulary;
}

// The two tokens of a merge: ["a", "b"] or "a b". Both are empty otherwise.
std::pair<absl::string_view, absl::string_view> MergedTexts(const Json& json) {
  if (json.is_array() && json.size() == 2 && json[0].is_string() &&
      json[1].is_string()) {
    return {json[0].get_ref<const std::string&>(),
            json[1].get_ref<const std::string&>()};
  }
  if (!json.is_string()) return {};
  const absl::string_view text = json.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == absl::string_view::npos || space != text.rfind(' ')) return {};
  return {text.substr(0, space), text.substr(space + 1)};
}

absl::Status ReadMerges(const Json& json, const Vocabulary& vocabulary,
                        std::vector<BpeMerge>* merges) {
  if (!json.is_array() || json.size() > kMaxMerges) {
    return Refuse("model.merges",
                  absl::StrCat("an array of at most ", kMaxMerges), json);
  }
  merges->reserve(json.size());
  for (size_t i = 0; i < json.size(); ++i) {
    const auto [left, right] = MergedTexts(json[i]);
    const auto first = vocabulary.find(left);
    const auto second = vocabulary.find(right);
    const auto merged = vocabulary.find(absl::StrCat(left, right));
    if (left.empty() || right.empty() || first == vocabulary.end() ||
        second == vocabulary.end() || merged == vocabulary.end()) {
      return Refuse(
          absl::StrCat("model.merges[", i, "]"),
          "two tokens of model.vocab that form a third, [\"a\", \"b\"] or "
          "\"a b\"",
          left.empty() ? json[i] : Json(absl::StrCat(left, " ", right)));
    }
    merges->push_back({first->second, second->second, merged->second});
  }
  return absl::OkStatus();
}

absl::StatusOr<Vocabulary> ReadModel(const Json& json,
                                     TokenizerJson* tokenizer) {
  if (json.is_object() && json.contains("type") && Type(json) != "BPE") {
    return Refuse("model.type", "BPE", json["type"]);
  }
  RETURN_IF_ERROR(
      CheckObject(json, "model",
                  {"type", "dropout", "unk_token", "continuing_subword_prefix",
                   "end_of_word_suffix", "fuse_unk", "byte_fallback",
                   "ignore_merges", "vocab", "merges"}));
  // Every byte has a token, so unk_token and fuse_unk have no effect.
  RETURN_IF_ERROR(CheckEmpty(json, "model", {"dropout"}, {"0.0"}));
  RETURN_IF_ERROR(CheckEmpty(
      json, "model", {"continuing_subword_prefix", "end_of_word_suffix"},
      {"\"\""}));
  RETURN_IF_ERROR(CheckEmpty(json, "model", {"byte_fallback"}, {"false"}));
  ASSIGN_OR_RETURN(tokenizer->ignore_merges,
                   Flag(json, "model", "ignore_merges", false));
  ASSIGN_OR_RETURN(Vocabulary vocabulary,
                   ReadVocabulary(Field(json, "vocab"), tokenizer));
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    const auto token = vocabulary.find(ToByteLevel({&text, 1}));
    if (token == vocabulary.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("model.vocab has no token for the byte 0x",
                       absl::Hex(byte, absl::kZeroPad2),
                       "; it must have all 256, as byte-level BPE does"));
    }
    tokenizer->byte_ids[byte] = token->second;
  }
  RETURN_IF_ERROR(
      ReadMerges(Field(json, "merges"), vocabulary, &tokenizer->merges));
  return vocabulary;
}

absl::StatusOr<TokenizerJson::AddedToken> ReadAddedToken(
    const Json& json, const std::string& path) {
  RETURN_IF_ERROR(CheckObject(json, path,
                              {"id", "content", "single_word", "lstrip",
                               "rstrip", "normalized", "special"}));
  RETURN_IF_ERROR(
      CheckEmpty(json, path, {"single_word", "lstrip", "rstrip"}, {"false"}));
  const Json& content = Field(json, "content");
  if (!content.is_string() || content.get_ref<const std::string&>().empty()) {
    return Refuse(path + ".content", "a text", content);
  }
  TokenizerJson::AddedToken token;
  token.text = content;
  ASSIGN_OR_RETURN(token.id, TokenId(Field(json, "id"), path + ".id"));
  ASSIGN_OR_RETURN(token.special, Flag(json, path, "special", false));
  ASSIGN_OR_RETURN(token.normalized,
                   Flag(json, path, "normalized", !token.special));
  return token;
}

// Adds `token` to `tokens`. Its id must be the one that `tokenizers` gives it,
// whatever the file says: that of model.vocab, else the next one.
absl::Status AddToken(TokenizerJson::AddedToken token, const std::string& path,
                      const Vocabulary& vocabulary, TokenizerJson* tokenizer) {
  const auto known = vocabulary.find(token.text);
  const auto id = known != vocabulary.end()
                      ? known->second
                      : static_cast<int32_t>(tokenizer->tokens.size());
  if (token.id != id) {
    return Refuse(path + ".id",
                  absl::StrCat(id,
                               ", the id of this token in model.vocab, "
                               "else the next one"),
                  Json(token.id));
  }
  if (known == vocabulary.end()) tokenizer->tokens.push_back(token.text);
  if (token.normalized && tokenizer->nfc) {
    std::string buffer;
    token.text = std::string(ToNfc(token.text, &buffer));
  }
  tokenizer->added_tokens.push_back(std::move(token));
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const Json& json, const Vocabulary& vocabulary,
                             TokenizerJson* tokenizer) {
  if (json.is_null()) return absl::OkStatus();
  if (!json.is_array() || json.size() > kMaxAddedTokens) {
    return Refuse("added_tokens",
                  absl::StrCat("an array of at most ", kMaxAddedTokens), json);
  }
  std::vector<std::pair<TokenizerJson::AddedToken, std::string>> sorted;
  absl::flat_hash_set<std::string> texts;
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string path = absl::StrCat("added_tokens[", i, "]");
    ASSIGN_OR_RETURN(TokenizerJson::AddedToken token,
                     ReadAddedToken(json[i], path));
    if (!texts.insert(token.text).second) {
      return Refuse(path + ".content", "the text of no other added token",
                    Json(token.text));
    }
    sorted.emplace_back(std::move(token), path);
  }
  std::stable_sort(
      sorted.begin(), sorted.end(),
      [](const auto& a, const auto& b) { return a.first.id < b.first.id; });
  for (auto& [token, path] : sorted) {
    RETURN_IF_ERROR(AddToken(std::move(token), path, vocabulary, tokenizer));
  }
  return absl::OkStatus();
}

OrderedJson AddedTokensToJson(const TokenizerJson& tokenizer) {
  OrderedJson list = OrderedJson::array();
  for (const TokenizerJson::AddedToken& token : tokenizer.added_tokens) {
    list.push_back({{"id", token.id},
                    {"content", token.text},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", token.normalized},
                    {"special", token.special}});
  }
  return list;
}

OrderedJson ModelToJson(const TokenizerJson& tokenizer) {
  OrderedJson vocabulary = OrderedJson::object();
  // ordered_json looks a key up in a list; this is an append.
  auto& entries = vocabulary.get_ref<OrderedJson::object_t&>();
  std::vector<std::string> texts;
  for (const std::string& token : tokenizer.tokens) {
    texts.push_back(ToByteLevel(token));
    entries.emplace_back(texts.back(), texts.size() - 1);
  }
  OrderedJson merges = OrderedJson::array();
  for (const BpeMerge& merge : tokenizer.merges) {
    merges.push_back({texts[merge.left], texts[merge.right]});
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", tokenizer.ignore_merges},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

OrderedJson ByteLevelToJson(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

OrderedJson PreTokenizerToJson(const PreTokenizer::Stage& stage) {
  if (stage.pattern == kGpt2Pattern) return ByteLevelToJson(true);
  const OrderedJson split = {{"type", "Split"},
                             {"pattern", {{"Regex", stage.pattern}}},
                             {"behavior", "Isolated"},
                             {"invert", false}};
  return {
      {"type", "Sequence"},
      {"pretokenizers", OrderedJson::array({split, ByteLevelToJson(false)})}};
}

}  // namespace

absl::StatusOr<TokenizerJson> ParseTokenizerJson(absl::string_view text) {
  const Json json = ParseJson(text);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        "is not a JSON object; must be a tokenizer.json of Hugging Face's "
        "tokenizers");
  }
  RETURN_IF_ERROR(CheckObject(
      json, "the file",
      {"version", "truncation", "padding", "added_tokens", "normalizer",
       "pre_tokenizer", "post_processor", "decoder", "model"}));
  TokenizerJson tokenizer;
  RETURN_IF_ERROR(CheckEmpty(json, "", {"truncation", "padding"}, {}));
  const Json& normalizer = Field(json, "normalizer");
  tokenizer.nfc = Type(normalizer) == "NFC";
  if (!normalizer.is_null() && !tokenizer.nfc) {
    return Refuse(
        "normalizer", "null or NFC",
        Type(normalizer).empty() ? normalizer : Json(Type(normalizer)));
  }
  ASSIGN_OR_RETURN(tokenizer.pre_tokenizer,
                   ReadPreTokenizer(Field(json, "pre_tokenizer")));
  RETURN_IF_ERROR(ReadPostProcessor(Field(json, "post_processor"),
                                    "post_processor", &tokenizer));
  const Json& decoder = Field(json, "decoder");
  if (Type(decoder) != "ByteLevel") {
    return Refuse("decoder.type", "ByteLevel",
                  Type(decoder).empty() ? decoder : Json(Type(decoder)));
  }
  ASSIGN_OR_RETURN(const Vocabulary vocabulary,
                   ReadModel(Field(json, "model"), &tokenizer));
  RETURN_IF_ERROR(
      ReadAddedTokens(Field(json, "added_tokens"), vocabulary, &tokenizer));
  for (const int32_t id : tokenizer.begin_ids) {
    if (id < static_cast<int64_t>(tokenizer.tokens.size()) &&
        !tokenizer.tokens[id].empty()) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("post_processor puts the id ", id,
                     " before a text, but no token has it; use ids of "
                     "model.vocab or added_tokens"));
  }
  return tokenizer;
}

std::string WriteTokenizerJson(const TokenizerJson& tokenizer) {
  const OrderedJson json = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", AddedTokensToJson(tokenizer)},
      {"normalizer", nullptr},
      {"pre_tokenizer", PreTokenizerToJson(tokenizer.pre_tokenizer.front())},
      {"post_processor", nullptr},
      {"decoder", ByteLevelToJson(true)},
      {"model", ModelToJson(tokenizer)}};
  return json.dump(2) + "\n";
}

}  // namespace tessera
