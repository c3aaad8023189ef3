#ifndef TRAINERS_GENERATION_TEXT_GENERATION_H_
#define TRAINERS_GENERATION_TEXT_GENERATION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/checkpoint/checkpoint.h"
#include "framework/data/data_config.pb.h"
#include "framework/data/tokenize/tokenizer.h"
#include "nlohmann/json.hpp"
#include "trainers/generation/sampling.h"

namespace tessera {

// Receives a sample's text, prompt included, as it is generated: whole
// characters of UTF-8, except for bytes that are not UTF-8. Further samples of
// the same prompt follow when all are complete. An error ends them.
using TextSink = absl::FunctionRef<absl::Status(absl::string_view text)>;

struct Prompt {
  std::string text;
  std::vector<int64_t> tokens;  // what the model continues
  int64_t before_text = 0;      // how many of the tokens precede the text
};
// Whether a model can begin a document, that is, whether its training had
// something before a document's first token. `data` is that of its run.
bool BeginsDocuments(const Tokenizer& tokenizer, const DataConfig& data);

// The tokens are the tokenizer's begin_ids(), or the end of a document if there
// are none, and those of `text`. A model that was trained on separate documents
// has never seen a text follow the end of another document, so if there are no
// begin_ids() it gets only the tokens of `text`.
// InvalidArgument if `text` is empty and the model cannot begin a document.
absl::StatusOr<Prompt> MakePrompt(const Tokenizer& tokenizer,
                                  const DataConfig& data,
                                  absl::string_view text);

// Continues `prompt`, or starts a document if its text is empty, up to
// options.max_tokens, options.stop_texts, options.stop_tokens or the end of the
// document. A line "---" separates samples.
absl::Status SampleText(NextTokenModel& model, const Tokenizer& tokenizer,
                        const Prompt& prompt, SamplingOptions options,
                        TextSink emit);

// Continues the token ids `prompt` by options.max_tokens. Calls `emit` with
// "1,2,3", the prompt, and then with ",ID" for each token; each sample is a
// line. InvalidArgument names an id that the model does not have.
absl::Status SampleTokens(NextTokenModel& model,
                          const std::vector<int64_t>& prompt,
                          const SamplingOptions& options, TextSink emit);

// InvalidArgument names an id of `prompt` that is not below `vocab_size`.
absl::Status CheckTokenIds(const std::vector<int64_t>& prompt,
                           int64_t vocab_size);

// Parses "1,2,3", integers >= 0; empty for an empty text. InvalidArgument names
// `what`, the source of the text, and the part that is not a token id.
absl::StatusOr<std::vector<int64_t>> ParseTokenIds(absl::string_view text,
                                                   absl::string_view what);

// The tokenizer.json of a checkpoint: Hugging Face's file of a byte-level BPE;
// of another tokenizer, {"kind": its name, "serialized": base64}.
std::string TokenizerToJson(const Tokenizer& tokenizer);
// The tokenizer of a checkpoint of a model with `vocab_size` token ids, which
// must not be fewer than the tokenizer's. NotFound, with what to do, if its run
// trained on token ids without text.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerOf(
    const Checkpoint& checkpoint, int64_t vocab_size);

}  // namespace tessera

#endif  // TRAINERS_GENERATION_TEXT_GENERATION_H_
