#include "trainers/generation/text_generation.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "framework/base/field_error.h"
#include "framework/base/json_fields.h"
#include "framework/base/status_macros.h"
#include "framework/data/tokenize/utf8.h"

namespace tessera {

namespace {

// The most bytes at the end of `text` with which one of `stops` may begin.
size_t UnfinishedBytes(absl::string_view text,
                       absl::Span<const std::string> stops) {
  size_t most = 0;
  for (const absl::string_view stop : stops) {
    for (size_t bytes = std::min(text.size(), stop.size()); bytes > most;
         --bytes) {
      if (absl::EndsWith(text, stop.substr(0, bytes))) most = bytes;
    }
  }
  return most;
}

// Makes text of the tokens of a sample: whole characters, up to the first of
// `stops`.
class TextDecoder {
 public:
  TextDecoder(const Tokenizer& tokenizer, absl::Span<const std::string> stops)
      : tokenizer_(&tokenizer), stops_(stops) {}

  // The text that is complete with `token`.
  absl::StatusOr<std::string> Decode(int64_t token) {
    ASSIGN_OR_RETURN(const std::string bytes,
                     tokenizer_->Decode({static_cast<int32_t>(token)}));
    absl::StrAppend(&held_, bytes);
    // The stop text that is completed first ends the sample. If several end
    // at the same place, the longest counts.
    size_t complete = held_.npos, end = held_.npos;
    for (const std::string& stop : stops_) {
      const size_t begin = held_.find(stop);
      if (begin == held_.npos) continue;
      const std::pair found(begin + stop.size(), begin);
      std::tie(complete, end) = std::min(std::pair(complete, end), found);
    }
    stopped_ = end != held_.npos;
    if (stopped_) return std::exchange(held_, "").substr(0, end);
    const size_t whole =
        held_.size() -
        std::max(Utf8UnfinishedBytes(held_), UnfinishedBytes(held_, stops_));
    const std::string text = held_.substr(0, whole);
    held_.erase(0, whole);
    return text;
  }

  bool stopped() const { return stopped_; }
  // The beginning of a character, or of one of the texts that stop.
  const std::string& held() const { return held_; }

 private:
  const Tokenizer* tokenizer_;
  absl::Span<const std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

// Emits the first sample as it is made, and the others at the end.
class SampleQueue {
 public:
  // Each sample begins with `prompt`.
  SampleQueue(int64_t samples, absl::string_view prompt, TextSink emit)
      : emit_(emit), texts_(samples, std::string(prompt)) {}

  // Call it first.
  absl::Status Begin() { return emit_(texts_[0]); }
  absl::Status Add(int64_t sample, absl::string_view text) {
    if (sample == 0) return emit_(text);
    absl::StrAppend(&texts_[sample], text);
    return absl::OkStatus();
  }
  absl::Status End(absl::string_view separator) {
    for (size_t i = 1; i < texts_.size(); ++i) {
      RETURN_IF_ERROR(emit_(absl::StrCat(separator, texts_[i])));
    }
    return absl::OkStatus();
  }

 private:
  const TextSink emit_;
  std::vector<std::string> texts_;  // so far, of all but the first
};

}  // namespace

bool BeginsDocuments(const Tokenizer& tokenizer, const DataConfig& data) {
  return !tokenizer.begin_ids().empty() ||
         data.documents() != DataConfig::SEPARATE ||
         data.train_across_documents();
}

absl::StatusOr<Prompt> MakePrompt(const Tokenizer& tokenizer,
                                  const DataConfig& data,
                                  absl::string_view text) {
  if (text.empty() && !BeginsDocuments(tokenizer, data)) {
    return absl::InvalidArgumentError(
        "the prompt is empty, but a model that is trained with data.documents: "
        "SEPARATE never learns to begin a document; give a prompt");
  }
  std::vector<int32_t> begin = tokenizer.begin_ids();
  // A document that begins with nothing comes after the end of another.
  if (begin.empty() &&
      (text.empty() || data.documents() != DataConfig::SEPARATE)) {
    begin.push_back(tokenizer.eos_id());
  }
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.Encode(text));
  Prompt prompt{.text = std::string(text),
                .before_text = static_cast<int64_t>(begin.size())};
  prompt.tokens.assign(begin.begin(), begin.end());
  prompt.tokens.insert(prompt.tokens.end(), ids.begin(), ids.end());
  return prompt;
}

absl::Status SampleText(NextTokenModel& model, const Tokenizer& tokenizer,
                        const Prompt& prompt, SamplingOptions options,
                        TextSink emit) {
  options.stop_tokens.push_back(tokenizer.eos_id());
  options.vocab_size = tokenizer.vocab_size();
  options.before_text = prompt.before_text;
  SampleQueue queue(options.samples, prompt.text, emit);
  RETURN_IF_ERROR(queue.Begin());
  std::vector<TextDecoder> decoders(options.samples,
                                    TextDecoder(tokenizer, options.stop_texts));
  const auto decode = [&](int64_t i, int64_t token) -> absl::StatusOr<bool> {
    ASSIGN_OR_RETURN(const std::string text, decoders[i].Decode(token));
    RETURN_IF_ERROR(queue.Add(i, text));
    return !decoders[i].stopped();
  };
  RETURN_IF_ERROR(Sample(model, prompt.tokens, options, decode));
  for (int64_t i = 0; i < options.samples; ++i) {
    RETURN_IF_ERROR(queue.Add(i, decoders[i].held()));
  }
  return queue.End("\n---\n");
}

absl::Status CheckTokenIds(const std::vector<int64_t>& prompt,
                           int64_t vocab_size) {
  for (const int64_t id : prompt) {
    if (id < vocab_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt has token id ", id,
                     ", but the model's vocabulary has ids from 0 to ",
                     vocab_size - 1, "; use ids in that range"));
  }
  return absl::OkStatus();
}

absl::Status SampleTokens(NextTokenModel& model,
                          const std::vector<int64_t>& prompt,
                          const SamplingOptions& options, TextSink emit) {
  RETURN_IF_ERROR(CheckTokenIds(prompt, model.vocab()));
  SampleQueue queue(options.samples, absl::StrJoin(prompt, ","), emit);
  RETURN_IF_ERROR(queue.Begin());
  RETURN_IF_ERROR(Sample(model, prompt, options,
                         [&](int64_t i, int64_t token) -> absl::StatusOr<bool> {
                           RETURN_IF_ERROR(
                               queue.Add(i, absl::StrCat(",", token)));
                           return true;
                         }));
  return queue.End("\n");
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
  constexpr absl::string_view kAdvice =
      "; give the prompt as token ids, --prompt_tokens=1,2,3";
  const nlohmann::json& json = checkpoint.tokenizer();
  if (json.is_null()) {
    return absl::NotFoundError(absl::StrCat(
        checkpoint.folder(),
        " has no tokenizer.json: the model trained on token ids, or was "
        "exported with a tokenizer of another kind",
        kAdvice,
        ", or use a checkpoint of a run on a folder of trainers:prepare_data, "
        "which has its tokenizer"));
  }
  const std::string source = checkpoint.tokenizer_source();
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadFrom(json, source);
  if (!tokenizer.ok()) {
    return absl::Status(tokenizer.status().code(),
                        absl::StrCat(tokenizer.status().message(), kAdvice));
  }
  RETURN_IF_ERROR(CheckVocabulary(**tokenizer, source, vocab_size));
  return tokenizer;
}

}  // namespace tessera
