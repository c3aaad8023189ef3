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

AddedTokenFinder::AddedTokenFinder(
    std::vector<std::pair<std::string, int32_t>> text_to_id) {
  std::stable_sort(
      text_to_id.begin(), text_to_id.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [text, id] : text_to_id) {
    // The tokens with which a text begins are the token before it in the order,
    // or among the tokens with which that one begins.
    auto prefix = static_cast<int32_t>(tokens_.size()) - 1;
    while (prefix >= 0 && !absl::StartsWith(text, tokens_[prefix].text)) {
      prefix = tokens_[prefix].prefix;
    }
    if (prefix >= 0 && tokens_[prefix].text == text) continue;
    for (int second = 0; second < 256; ++second) {
      const char next = text.size() > 1 ? text[1] : static_cast<char>(second);
      begins_.set(TwoBytes(text[0], next));
    }
    tokens_.push_back({std::move(text), id, prefix});
  }
}

const AddedTokenFinder::Token* AddedTokenFinder::Find(
    absl::string_view text) const {
  const char second = text.size() > 1 ? text[1] : '\0';
  if (!begins_.test(TwoBytes(text[0], second))) return nullptr;
  const auto after = std::upper_bound(
      tokens_.begin(), tokens_.end(), text,
      [](absl::string_view a, const Token& b) { return a < b.text; });
  auto found = static_cast<int32_t>(after - tokens_.begin()) - 1;
  while (found >= 0 && !absl::StartsWith(text, tokens_[found].text)) {
    found = tokens_[found].prefix;
  }
  return found < 0 ? nullptr : &tokens_[found];
}

absl::Status AddedTokenFinder::Split(absl::string_view text, Sink sink) const {
  size_t begin = 0;  // of the text since the last token
  for (size_t i = 0; i < text.size() && !tokens_.empty();) {
    const Token* token = Find(text.substr(i));
    if (token == nullptr) {
      ++i;
      continue;
    }
    const size_t size = token->text.size();
    if (i > begin) {
      RETURN_IF_ERROR(sink(text.substr(begin, i - begin), std::nullopt));
    }
    RETURN_IF_ERROR(sink(text.substr(i, size), token->id));
    i += size;
    begin = i;
  }
  if (begin == text.size()) return absl::OkStatus();
  return sink(text.substr(begin), std::nullopt);
}

}  // namespace tessera
