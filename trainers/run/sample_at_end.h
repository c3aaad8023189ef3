#ifndef TRAINERS_RUN_SAMPLE_AT_END_H_
#define TRAINERS_RUN_SAMPLE_AT_END_H_

#include <optional>

#include "absl/status/statusor.h"
#include "framework/observe/step_record.h"
#include "trainers/run/session.h"

namespace tessera {

// Generates training.sample_tokens_at_end tokens after training.sample_prompt:
// text, or token ids if the data has no tokenizer. Returns nullopt, with a
// warning, if the prompt needs the missing tokenizer or memory does not
// suffice. Frees the session's step first. Calls no collective.
absl::StatusOr<std::optional<SampleRecord>> SampleAtEnd(Session& session);

}  // namespace tessera

#endif  // TRAINERS_RUN_SAMPLE_AT_END_H_
