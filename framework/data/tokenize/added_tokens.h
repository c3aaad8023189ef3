#ifndef FRAMEWORK_DATA_TOKENIZE_ADDED_TOKENS_H_
#define FRAMEWORK_DATA_TOKENIZE_ADDED_TOKENS_H_

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Finds tokens that stand for an exact text, as special tokens do: from left to
// right, the longest at each place.
class AddedTokenFinder {
 public:
  // The texts are not empty. Of equal texts the first counts.
  explicit AddedTokenFinder(
      std::vector<std::pair<std::string, int32_t>> text_to_id);

  // Calls `sink` with every token in `text` and its id, and with the text
  // between tokens without an id, in order.
  using Sink = absl::FunctionRef<absl::Status(absl::string_view part,
                                              std::optional<int32_t> id)>;
  absl::Status Split(absl::string_view text, Sink sink) const;

 private:
  struct Token {
    std::string text;
    int32_t id = 0;
    // Index of the longest other token with which this one begins; negative:
    // none.
    int32_t prefix = -1;
  };

  // The longest token at the beginning of `text`; null: none.
  const Token* Find(absl::string_view text) const;

  std::vector<Token> tokens_;  // sorted by text
  // The two bytes with which a token begins: few places in a text pass.
  std::bitset<1 << 16> begins_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_TOKENIZE_ADDED_TOKENS_H_
