#ifndef FRAMEWORK_DATA_TOKENIZE_PRE_TOKENIZER_H_
#define FRAMEWORK_DATA_TOKENIZE_PRE_TOKENIZER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/data/tokenize/split_pattern.h"

namespace tessera {

// Splits text into pre-tokens, across which BPE merges nothing.
class PreTokenizer {
 public:
  // One component of a tokenizer.json. Each splits what the one before left.
  struct Stage {
    bool add_prefix_space = false;  // if the text does not begin with a space
    std::string pattern;            // empty: does not split
    bool drops_gaps = false;  // text between matches is dropped, else kept
  };

  // Memory for splitting, one for each thread.
  struct State {
    explicit State(size_t stages) : prefixed(stages) {}
    SplitPattern::MatchState match;
    std::vector<std::string> prefixed;  // the text with a space, by stage
  };

  // InvalidArgument for a pattern that is not supported.
  static absl::StatusOr<PreTokenizer> Create(const std::vector<Stage>& stages);

  State MakeState() const { return State(stages_.size()); }

  // Calls `sink` with every pre-token of `text`, which must be UTF-8. If it
  // `continues` another, adds no space before it.
  using Sink = absl::FunctionRef<void(absl::string_view pre_token)>;
  absl::Status Split(absl::string_view text, bool continues, State* state,
                     Sink sink) const {
    return SplitFrom(0, text, continues, state, sink);
  }

 private:
  struct CompiledStage {
    Stage stage;
    std::optional<SplitPattern> pattern;
  };

  // Split() by the stages from number `first` on.
  absl::Status SplitFrom(size_t first, absl::string_view text, bool continues,
                         State* state, Sink sink) const;

  std::vector<CompiledStage> stages_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_TOKENIZE_PRE_TOKENIZER_H_
