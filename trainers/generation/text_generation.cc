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

constexpr char kBetweenSamples[] = "\n---\n";

// Makes text of the tokens of a sample: whole characters, up to `stop`.
class TextDecoder {
 public:
  TextDecoder(const Tokenizer& tokenizer, absl::string_view stop)
      : tokenizer_(&tokenizer), stop_(stop) {}

  // The text that is complete with `token`.
  absl::StatusOr<std::string> Decode(int64_t token) {
    ASSIGN_OR_RETURN(const std::string bytes,
                     tokenizer_->Decode({static_cast<int32_t>(token)}));
    absl::StrAppend(&held_, bytes);
    const size_t stops = stop_.empty() ? held_.npos : held_.find(stop_);
    stopped_ = stops != held_.npos;
    if (stopped_) return std::exchange(held_, "").substr(0, stops);
    const size_t whole = held_.size() - std::max(Utf8UnfinishedBytes(held_),
                                                 UnfinishedBytes(held_, stop_));
    const std::string text = held_.substr(0, whole);
    held_.erase(0, whole);
    return text;
  }

  bool stopped() const { return stopped_; }
  // The beginning of a character, or of `stop`.
  const std::string& held() const { return held_; }

 private:
  const Tokenizer* tokenizer_;
  std::string stop_, held_;
  bool stopped_ = false;
};

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
  ASSIGN_OR_RETURN(const std::vector<int64_t> tokens,
                   PromptTokens(tokenizer, prompt));
  options.stop_tokens.push_back(tokenizer.eos_id());
  options.vocab_size = tokenizer.vocab_size();
  RETURN_IF_ERROR(emit(prompt));
  std::vector<TextDecoder> decoders(options.samples,
                                    TextDecoder(tokenizer, options.stop_text));
  std::vector<std::string> later(options.samples);  // texts but the first
  const auto decode = [&](int64_t i, int64_t token) -> absl::StatusOr<bool> {
    ASSIGN_OR_RETURN(const std::string text, decoders[i].Decode(token));
    if (i == 0) {
      RETURN_IF_ERROR(emit(text));
    } else {
      later[i] += text;
    }
    return !decoders[i].stopped();
  };
  RETURN_IF_ERROR(Sample(model, tokens, options, decode));
  RETURN_IF_ERROR(emit(decoders[0].held()));
  for (int64_t i = 1; i < options.samples; ++i) {
    RETURN_IF_ERROR(emit(
        absl::StrCat(kBetweenSamples, prompt, later[i], decoders[i].held())));
  }
  return absl::OkStatus();
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
  const std::string begin = absl::StrJoin(prompt, ",");
  RETURN_IF_ERROR(emit(begin));
  std::vector<std::string> later(options.samples, absl::StrCat("\n", begin));
  RETURN_IF_ERROR(Sample(model, prompt, options,
                         [&](int64_t i, int64_t token) -> absl::StatusOr<bool> {
                           const std::string text = absl::StrCat(",", token);
                           if (i == 0) {
                             RETURN_IF_ERROR(emit(text));
                           } else {
                             later[i] += text;
                           }
                           return true;
                         }));
  for (int64_t i = 1; i < options.samples; ++i) {
    RETURN_IF_ERROR(emit(later[i]));
  }
  return absl::OkStatus();
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
