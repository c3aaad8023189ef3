#include "framework/data/tokenize/added_tokens.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

size_t TwoBytes(char first, char second) {
  return static_cast<uint8_t>(first) << 8 | static_cast<uint8_t>(second);
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<Token> text_to_id)
    : tokens_(std::move(text_to_id)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const Token& a, const Token& b) {
                     return a.first.size() > b.first.size();
                   });
  for (const auto& [text, id] : tokens_) {
    for (int second = 0; second < 256; ++second) {
      const char next = text.size() > 1 ? text[1] : static_cast<char>(second);
      begins_.set(TwoBytes(text[0], next));
    }
  }
}

const AddedTokenFinder::Token* AddedTokenFinder::Find(
    absl::string_view text) const {
  const char second = text.size() > 1 ? text[1] : '\0';
  if (!begins_.test(TwoBytes(text[0], second))) return nullptr;
  for (const Token& token : tokens_) {
    if (absl::StartsWith(text, token.first)) return &token;
  }
  return nullptr;
}

absl::Status AddedTokenFinder::Split(absl::string_view text, Sink sink) const {
  size_t begin = 0;  // of the text since the last token
  for (size_t i = 0; i < text.size() && !tokens_.empty();) {
    const Token* token = Find(text.substr(i));
    if (token == nullptr) {
      ++i;
      continue;
    }
    const size_t size = token->first.size();
    if (i > begin) {
      RETURN_IF_ERROR(sink(text.substr(begin, i - begin), std::nullopt));
    }
    RETURN_IF_ERROR(sink(text.substr(i, size), token->second));
    i += size;
    begin = i;
  }
  if (begin == text.size()) return absl::OkStatus();
  return sink(text.substr(begin), std::nullopt);
}

}  // namespace tessera
