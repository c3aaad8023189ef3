#include "trainers/generation/text_generation.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "framework/base/field_error.h"
#include "framework/base/json_fields.h"
#include "framework/base/status_macros.h"
#include "framework/data/tokenize/utf8.h"

namespace tessera {

namespace {

// The bytes at the end of `text` with which `stop` may begin.
size_t UnfinishedBytes(absl::string_view text, absl::string_view stop) {
  for (size_t bytes = std::min(text.size(), stop.size()); bytes > 0; --bytes) {
    if (absl::EndsWith(text, stop.substr(0, bytes))) return bytes;
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> PromptTokens(const Tokenizer& tokenizer,
                                                  absl::string_view prompt) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> text, tokenizer.Encode(prompt));
  const std::vector<int32_t> begin = tokenizer.begin_ids();
  std::vector<int64_t> tokens(begin.begin(), begin.end());
  tokens.insert(tokens.end(), text.begin(), text.end());
  return tokens;
}

absl::Status SampleText(NextTokenModel& model, const Tokenizer& tokenizer,
                        absl::string_view prompt, SamplingOptions options,
                        TextSink emit) {
  ASSIGN_OR_RETURN(std::vector<int64_t> tokens,
                   PromptTokens(tokenizer, prompt));
  options.stop_tokens.push_back(tokenizer.eos_id());
  options.vocab_size = tokenizer.vocab_size();
  RETURN_IF_ERROR(emit(prompt));
  const std::string& stop = options.stop_text;
  std::string held;  // the beginning of a character, or of `stop`
  const auto decode = [&](int64_t token) -> absl::StatusOr<bool> {
    ASSIGN_OR_RETURN(const std::string bytes,
                     tokenizer.Decode({static_cast<int32_t>(token)}));
    absl::StrAppend(&held, bytes);
    const size_t stops = stop.empty() ? held.npos : held.find(stop);
    size_t whole = stops;
    if (stops == held.npos) {
      whole = held.size() -
              std::max(Utf8UnfinishedBytes(held), UnfinishedBytes(held, stop));
    }
    RETURN_IF_ERROR(emit(absl::string_view(held).substr(0, whole)));
    held = stops == held.npos ? held.substr(whole) : "";
    return stops == held.npos;
  };
  RETURN_IF_ERROR(Sample(model, std::move(tokens), options, decode));
  return emit(held);
}

absl::Status SampleTokens(NextTokenModel& model,
                          const std::vector<int64_t>& prompt,
                          const SamplingOptions& options, TextSink emit) {
  for (const int64_t id : prompt) {
    if (id < model.vocab()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt has token id ", id,
                     ", but the model's vocabulary has ids from 0 to ",
                     model.vocab() - 1, "; use ids in that range"));
  }
  RETURN_IF_ERROR(emit(absl::StrJoin(prompt, ",")));
  return Sample(model, prompt, options,
                [&](int64_t token) -> absl::StatusOr<bool> {
                  RETURN_IF_ERROR(emit(absl::StrCat(",", token)));
                  return true;
                });
}

absl::StatusOr<std::vector<int64_t>> ParseTokenIds(absl::string_view text,
                                                   absl::string_view what) {
  std::vector<int64_t> ids;
  if (text.empty()) return ids;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int64_t id;
    if (!absl::SimpleAtoi(part, &id) || id < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          what, ": '", part,
          "' is not a token id; give integers >= 0, separated by commas, as in "
          "1,2,3"));
    }
    ids.push_back(id);
  }
  return ids;
}

namespace {

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadFrom(const nlohmann::json& json,
                                                    const std::string& source) {
  if (json.contains("model")) {
    return LoadTokenizer(TokenizerKind::kByteLevelBpe, json.dump(), source);
  }
  JsonFields fields(json, source);
  const std::string name = fields.Text("kind");
  const std::string serialized = fields.Base64("serialized");
  RETURN_IF_ERROR(fields.status());
  const absl::StatusOr<TokenizerKind> kind = TokenizerKindFromName(name);
  if (!kind.ok()) return FieldError(source, kind.status());
  return LoadTokenizer(*kind, serialized, source);
}

}  // namespace

std::string TokenizerToJson(const Tokenizer& tokenizer) {
  if (tokenizer.kind() == TokenizerKind::kByteLevelBpe) {
    return tokenizer.Serialize();
  }
  const nlohmann::json json = {
      {"kind", std::string(Name(tokenizer.kind()))},
      {"serialized", absl::Base64Escape(tokenizer.Serialize())}};
  return json.dump(2);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerOf(
    const Checkpoint& checkpoint, int64_t vocab_size) {
  const nlohmann::json& json = checkpoint.tokenizer();
  if (json.is_null()) {
    return absl::NotFoundError(absl::StrCat(
        checkpoint.folder(),
        " has no tokenizer: its run trained on token ids; give the prompt "
        "as token ids, --prompt_tokens=1,2,3, or train on a folder of "
        "trainers:prepare_data, whose tokenizer is saved in the checkpoint"));
  }
  const std::string source = checkpoint.tokenizer_source();
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                   LoadFrom(json, source));
  RETURN_IF_ERROR(CheckVocabulary(*tokenizer, source, vocab_size));
  return tokenizer;
}

}  // namespace tessera
