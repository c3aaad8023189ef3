#ifndef FRAMEWORK_DATA_TOKENIZE_SPLIT_PATTERN_H_
#define FRAMEWORK_DATA_TOKENIZE_SPLIT_PATTERN_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct pcre2_real_code_8;  // pcre2.h needs a macro before it is included
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;
struct pcre2_real_jit_stack_8;

namespace tessera {

// The patterns by which the tokenizers in use split text, in Oniguruma's
// syntax. cl100k and Llama 3 split alike; cl100k's possessive quantifiers only
// save backtracking.
inline constexpr absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|)"
    R"(\s+(?!\S)|\s+)";
inline constexpr absl::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr absl::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The pattern with the name gpt2, llama3 or qwen2. InvalidArgument for another.
absl::StatusOr<absl::string_view> SplitPatternByName(absl::string_view name);

// Translates a pattern of a tokenizer.json, which Oniguruma reads in Ruby's
// syntax, to PCRE2's. Takes \s, which has a translation, and the constructs
// that mean the same in both. InvalidArgument names any other and its byte.
absl::StatusOr<std::string> PcrePattern(absl::string_view pattern);

// A compiled pattern. Thread-safe; each thread has its own MatchState.
class SplitPattern {
 public:
  // Memory for matching, usable with every pattern.
  class MatchState {
   public:
    MatchState();

   private:
    friend class SplitPattern;
    std::shared_ptr<pcre2_real_match_data_8> data_;
    std::shared_ptr<pcre2_real_jit_stack_8> stack_;
    std::shared_ptr<pcre2_real_match_context_8> context_;
  };

  // `pattern` is in Oniguruma's syntax: see PcrePattern(). InvalidArgument also
  // for a pattern that matches an empty text.
  static absl::StatusOr<SplitPattern> Compile(absl::string_view pattern);

  // Calls `sink` with every match in `text`, which must be UTF-8, and with the
  // text between matches, in order. The sink may split with the same state.
  // InvalidArgument if the pattern takes too many steps.
  using Sink =
      absl::FunctionRef<absl::Status(absl::string_view part, bool is_match)>;
  absl::Status Split(absl::string_view text, MatchState* state,
                     Sink sink) const;

 private:
  explicit SplitPattern(pcre2_real_code_8* code);

  std::shared_ptr<pcre2_real_code_8> code_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_TOKENIZE_SPLIT_PATTERN_H_
