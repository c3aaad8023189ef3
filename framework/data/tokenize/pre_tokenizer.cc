#include "framework/data/tokenize/pre_tokenizer.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"

namespace tessera {

absl::StatusOr<PreTokenizer> PreTokenizer::Create(
    const std::vector<Stage>& stages) {
  PreTokenizer result;
  for (const Stage& stage : stages) {
    result.stages_.push_back({.stage = stage});
    if (stage.pattern.empty()) continue;
    ASSIGN_OR_RETURN(result.stages_.back().pattern,
                     SplitPattern::Compile(stage.pattern));
  }
  return result;
}

absl::Status PreTokenizer::SplitFrom(size_t first, absl::string_view text,
                                     bool continues, State* state,
                                     Sink sink) const {
  if (first == stages_.size()) {
    sink(text);
    return absl::OkStatus();
  }
  const auto& [stage, pattern] = stages_[first];
  if (stage.add_prefix_space && !continues && !absl::StartsWith(text, " ")) {
    state->prefixed[first] = absl::StrCat(" ", text);
    text = state->prefixed[first];
  }
  if (!pattern.has_value()) {
    return SplitFrom(first + 1, text, continues, state, sink);
  }
  return pattern->Split(text, &state->match,
                        [&](absl::string_view part, bool is_match) {
                          if (!is_match && stage.drops_gaps)
                            return absl::OkStatus();
                          return SplitFrom(first + 1, part,
                                           /*continues=*/false, state, sink);
                        });
}

}  // namespace tessera
