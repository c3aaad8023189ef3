#include "trainers/run/sample_at_end.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "trainers/generation/sampling.h"
#include "trainers/generation/text_generation.h"

namespace tessera {
namespace {

// A token with which a sequence of the training data begins.
absl::StatusOr<int64_t> FirstTrainingToken(Session& session) {
  ASSIGN_OR_RETURN(const Batch batch, session.train_loader().Load(0));
  return *batch.ids_mbs.const_data_ptr<int64_t>();
}

absl::StatusOr<Prompt> PromptOf(Session& session) {
  const RunConfig& config = session.plan().config;
  const Tokenizer& tokenizer = *session.data().tokenizer;
  const std::string& text = config.training().sample_prompt();
  if (!text.empty() || BeginsDocuments(tokenizer, config.data())) {
    return MakePrompt(tokenizer, config.data(), text);
  }
  ASSIGN_OR_RETURN(const int64_t token, FirstTrainingToken(session));
  ASSIGN_OR_RETURN(std::string shown,
                   tokenizer.Decode({static_cast<int32_t>(token)}));
  return Prompt{.text = std::move(shown), .tokens = {token}};
}

absl::StatusOr<SampleRecord> SampleOfText(Session& session,
                                          const SamplingOptions& options) {
  NextTokenModel model(session.plan(), *session.state().parameters);
  const Tokenizer& tokenizer = *session.data().tokenizer;
  ASSIGN_OR_RETURN(const Prompt prompt, PromptOf(session));
  SampleRecord sample{.heading = "sample"};
  RETURN_IF_ERROR(SampleText(model, tokenizer, prompt, options,
                             [&](absl::string_view text) {
                               absl::StrAppend(&sample.text, text);
                               return absl::OkStatus();
                             }));
  return sample;
}

absl::StatusOr<SampleRecord> SampleOfTokens(Session& session,
                                            const SamplingOptions& options) {
  ASSIGN_OR_RETURN(
      std::vector<int64_t> prompt,
      ParseTokenIds(session.plan().config.training().sample_prompt(),
                    "training.sample_prompt"));
  if (prompt.empty()) {  // any token that the model has seen
    ASSIGN_OR_RETURN(prompt.emplace_back(), FirstTrainingToken(session));
  }
  NextTokenModel model(session.plan(), *session.state().parameters);
  SampleRecord sample{.heading = "sample, token ids"};
  RETURN_IF_ERROR(
      SampleTokens(model, prompt, options, [&](absl::string_view text) {
        absl::StrAppend(&sample.text, text);
        return absl::OkStatus();
      }));
  return sample;
}

}  // namespace

absl::StatusOr<std::optional<SampleRecord>> SampleAtEnd(Session& session) {
  const TrainingConfig& training = session.plan().config.training();
  if (training.sample_tokens_at_end() == 0) return std::nullopt;
  if (session.plan().layout.sharding().divides_weights()) return std::nullopt;
  RETURN_IF_ERROR(session.FreeStep());
  const SamplingOptions options{.temperature = 0.8,
                                .top_p = 0.95,
                                .seed = static_cast<uint64_t>(training.seed()),
                                .max_tokens = training.sample_tokens_at_end()};
  const bool has_tokenizer = session.data().tokenizer != nullptr;
  SampleRecord sample;
  const absl::Status status = StatusFromTorchOr([&]() -> absl::Status {
    ASSIGN_OR_RETURN(sample, has_tokenizer ? SampleOfText(session, options)
                                           : SampleOfTokens(session, options));
    return absl::OkStatus();
  });
  // Training is done and saved, so these only warn: the memory plan of a run
  // does not count the sample, and the prompt may be a text.
  if (absl::IsResourceExhausted(status)) {
    LogWarning("no sample: out of memory");
  } else if (!has_tokenizer && absl::IsInvalidArgument(status)) {
    LogWarning(absl::StrCat("no sample: the data has no tokenizer, and ",
                            status.message()));
  } else {
    RETURN_IF_ERROR(status);
    return sample;
  }
  return std::nullopt;
}

}  // namespace tessera
