#ifndef TRAINERS_GENERATION_SAMPLING_H_
#define TRAINERS_GENERATION_SAMPLING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainers/generation/next_token.h"

namespace tessera {

// How the next token is drawn from softmax(logits / temperature).
struct SamplingOptions {
  double temperature = 1;  // finite, >= 0; 0 takes the most likely token
  int64_t top_k = 0;       // keep the k most likely tokens; 0: all
  // Keep the fewest most likely tokens whose probabilities reach this sum
  // (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020).
  double top_p = 1;  // in (0, 1]
  // Keep tokens at least this share as likely as the likeliest (Nguyen et al.,
  // "Turning Up the Heat: Min-p Sampling", 2024).
  double min_p = 0;  // in [0, 1]
  // Divides positive logits of tokens in the text so far, prompt included, and
  // multiplies negative ones (Keskar et al., "CTRL", 2019).
  double repetition_penalty = 1;  // in [0.01, 100]; 1: none
  // How many tokens at the beginning of the prompt precede the text, such as
  // the end of the document before it. They are not penalized.
  int64_t before_text = 0;
  int64_t samples = 1;  // in [1, 1024], at the same time
  // Sample i draws with seed + i. Equal seeds and prompts give equal samples.
  uint64_t seed = 0;
  int64_t max_tokens = 100;          // in [1, kMaxSampleTokens]
  std::vector<int64_t> stop_tokens;  // end the sample; not included
  // None is empty. The first that is complete ends the sample of a text, before
  // that stop text, also if it begins or ends inside a token.
  std::vector<std::string> stop_texts;
  // Draw only tokens below this, because the head may have more rows than the
  // tokenizer has tokens. Absent: all.
  std::optional<int64_t> vocab_size;
};

// InvalidArgument that names every option out of range.
absl::Status Validate(const SamplingOptions& options);

// Draws from one row of logits, [V]. `uniform` is a number in [0, 1).
int64_t DrawToken(absl::Span<const float> logits,
                  const SamplingOptions& options, double uniform);

// Receives each token of a sample, counted from 0, as soon as it is drawn.
// Returns whether that sample continues; an error ends all samples.
using TokenSink =
    absl::FunctionRef<absl::StatusOr<bool>(int64_t sample, int64_t token)>;

// Continues `prompt` (not empty) and calls `emit` with each new token.
// FailedPrecondition if logits of the model are not finite.
absl::Status Sample(NextTokenModel& model, const std::vector<int64_t>& prompt,
                    const SamplingOptions& options, TokenSink emit);

}  // namespace tessera

#endif  // TRAINERS_GENERATION_SAMPLING_H_
