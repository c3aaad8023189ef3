#include "framework/data/tokenize/split_pattern.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace tessera {
namespace {

constexpr size_t kMaxPatternBytes = 16 << 10;
// A match in the patterns above takes a few steps for each character.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr size_t kMinStackBytes = 32 << 10;
constexpr size_t kMaxStackBytes = 1 << 20;

// Unicode's White_Space, which is Oniguruma's \s, inside brackets. PCRE2's \s
// also has U+180E.
constexpr absl::string_view kWhiteSpace = R"(\p{Z}\t-\r\x{85})";

// General categories; PCRE2 and Oniguruma differ in the other properties.
constexpr absl::string_view kCategories[] = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",
    "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
    "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};

// Translates a pattern from left to right.
class Translator {
 public:
  explicit Translator(absl::string_view pattern) : rest_(pattern) {}

  absl::StatusOr<std::string> Run() {
    const size_t size = rest_.size();
    while (!rest_.empty()) {
      const absl::Status status = in_class_ ? ClassItem() : Item();
      if (status.ok()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("byte ", size - rest_.size(), ": ", status.message()));
    }
    if (in_class_) return absl::InvalidArgumentError("a [ has no ]");
    return result_;
  }

 private:
  static absl::Status Unsupported(absl::string_view construct) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", construct, "' is not supported"));
  }

  bool TakeIfNext(absl::string_view construct) {
    if (!absl::StartsWith(rest_, construct)) return false;
    Take(construct.size());
    return true;
  }
  void Take(size_t bytes) {
    absl::StrAppend(&result_, rest_.substr(0, bytes));
    rest_.remove_prefix(bytes);
  }

  // Outside brackets.
  absl::Status Item() {
    const bool follows_quantifier = std::exchange(follows_quantifier_, false);
    switch (rest_[0]) {
      case '\\':
        return Escape();
      case '[':
        Take(1);
        TakeIfNext("^");
        in_class_ = true;
        return absl::StartsWith(rest_, "]") ? Unsupported("[]")
                                            : absl::OkStatus();
      case '(':
        return Group();
      case '*':
      case '+':
      case '?':
      case '{':
        if (follows_quantifier) return Unsupported(rest_.substr(0, 1));
        follows_quantifier_ = true;
        return rest_[0] == '{' ? Interval() : Quantifier();
      case '.':
      case '^':
      case '$':
      case '}':
      case ']':
        return Unsupported(rest_.substr(0, 1));
      default:
        Take(1);
        return absl::OkStatus();
    }
  }

  absl::Status Group() {
    for (const absl::string_view begin :
         {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (TakeIfNext(begin)) return absl::OkStatus();
    }
    if (absl::StartsWith(rest_, "(?") || absl::StartsWith(rest_, "(*")) {
      return Unsupported(rest_.substr(0, 3));
    }
    Take(1);
    return absl::OkStatus();
  }

  // *, + or ?, which a + makes possessive and a ? lazy.
  absl::Status Quantifier() {
    Take(1);
    if (!TakeIfNext("+")) TakeIfNext("?");
    return absl::OkStatus();
  }

  // {n}, {n,} or {n,m}.
  absl::Status Interval() {
    const absl::string_view counts =
        rest_.substr(1, rest_.substr(1).find_first_not_of("0123456789,"));
    const absl::string_view interval = rest_.substr(0, counts.size() + 2);
    if (!absl::EndsWith(interval, "}") || counts.empty() || counts[0] == ',' ||
        std::count(counts.begin(), counts.end(), ',') > 1) {
      return Unsupported(interval);
    }
    Take(interval.size());
    // In Ruby's syntax, they repeat the interval and make it optional.
    for (const absl::string_view suffix : {"+", "?"}) {
      if (absl::StartsWith(rest_, suffix)) {
        return Unsupported(absl::StrCat("}", suffix));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ClassItem() {
    if (TakeIfNext("]")) {
      in_class_ = false;
      return absl::OkStatus();
    }
    // Oniguruma's nested sets and intersections.
    if (rest_[0] == '[') return Unsupported("[ inside []");
    if (absl::StartsWith(rest_, "&&")) return Unsupported("&&");
    if (rest_[0] == '\\') return Escape();
    Take(1);
    return absl::OkStatus();
  }

  absl::Status Escape() {
    const absl::string_view escape = rest_.substr(0, 2);
    if (escape == "\\p" || escape == "\\P") return Property();
    if (escape == "\\s" || (escape == "\\S" && !in_class_)) {
      const absl::string_view begin = in_class_         ? ""
                                      : escape == "\\s" ? "["
                                                        : "[^";
      absl::StrAppend(&result_, begin, kWhiteSpace, in_class_ ? "" : "]");
      rest_.remove_prefix(2);
      return absl::OkStatus();
    }
    constexpr absl::string_view kSame = "rnt";
    if (escape.size() < 2 || (absl::ascii_isalnum(escape[1]) &&
                              !absl::StrContains(kSame, escape[1]))) {
      return Unsupported(escape);
    }
    Take(2);
    return absl::OkStatus();
  }

  absl::Status Property() {
    const absl::string_view property = rest_.substr(0, rest_.find('}') + 1);
    const absl::string_view name =
        property.size() > 4 ? property.substr(3, property.size() - 4) : "";
    if (std::find(std::begin(kCategories), std::end(kCategories), name) ==
            std::end(kCategories) ||
        property[2] != '{') {
      return Unsupported(property.empty() ? rest_.substr(0, 2) : property);
    }
    Take(property.size());
    return absl::OkStatus();
  }

  absl::string_view rest_;
  std::string result_;
  bool in_class_ = false;
  bool follows_quantifier_ = false;
};

std::string PcreError(int code) {
  PCRE2_UCHAR message[256] = "";
  pcre2_get_error_message(code, message, sizeof(message));
  return reinterpret_cast<const char*>(message);
}

absl::Status MatchError(int code) {
  return absl::InvalidArgumentError(
      absl::StrCat("the tokenizer's pattern cannot be matched with this text: ",
                   PcreError(code)));
}

}  // namespace

absl::StatusOr<absl::string_view> SplitPatternByName(absl::string_view name) {
  if (name == "gpt2") return kGpt2Pattern;
  if (name == "llama3") return kLlama3Pattern;
  if (name == "qwen2") return kQwen2Pattern;
  return absl::InvalidArgumentError(
      absl::StrCat("no split pattern '", name, "'; use gpt2, llama3 or qwen2"));
}

absl::StatusOr<std::string> PcrePattern(absl::string_view pattern) {
  return Translator(pattern).Run();
}

SplitPattern::MatchState::MatchState()
    : data_(pcre2_match_data_create(1, nullptr), pcre2_match_data_free),
      stack_(pcre2_jit_stack_create(kMinStackBytes, kMaxStackBytes, nullptr),
             pcre2_jit_stack_free),
      context_(pcre2_match_context_create(nullptr), pcre2_match_context_free) {
  pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
  pcre2_set_match_limit(context_.get(), kMatchLimit);
}

SplitPattern::SplitPattern(pcre2_code* code) : code_(code, pcre2_code_free) {}

absl::StatusOr<SplitPattern> SplitPattern::Compile(absl::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", pattern.size(), " bytes; at most ",
                     kMaxPatternBytes, " are supported"));
  }
  ASSIGN_OR_RETURN(const std::string translated, PcrePattern(pattern));
  int error = 0;
  size_t offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                    translated.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset,
                    /*context=*/nullptr);
  if (code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("is not a regular expression: ", PcreError(error)));
  }
  SplitPattern result(code);
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    return absl::InvalidArgumentError("matches an empty text");
  }
  // Without a JIT for this processor, pcre2_match() interprets the pattern.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return result;
}

absl::Status SplitPattern::Split(absl::string_view text, MatchState* state,
                                 Sink sink) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t end = 0;  // of the last match
  while (end < text.size()) {
    const int code =
        pcre2_match(code_.get(), subject, text.size(), end, PCRE2_NO_UTF_CHECK,
                    state->data_.get(), state->context_.get());
    if (code == PCRE2_ERROR_NOMATCH) break;
    if (code < 0) return MatchError(code);
    // Copied, because the sink may use `state`.
    const size_t* match = pcre2_get_ovector_pointer(state->data_.get());
    const size_t begin = match[0];
    const size_t last_end = std::exchange(end, match[1]);
    if (begin > last_end) {
      RETURN_IF_ERROR(sink(text.substr(last_end, begin - last_end), false));
    }
    RETURN_IF_ERROR(sink(text.substr(begin, end - begin), true));
  }
  if (end == text.size()) return absl::OkStatus();
  return sink(text.substr(end), false);
}

}  // namespace tessera
