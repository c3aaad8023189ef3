#include "framework/data/prepare/corpus.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/base/random_access_file.h"
#include "framework/base/status_macros.h"
#include "framework/data/tokenize/utf8.h"

namespace tessera {
namespace {

// Short enough to hold out a hundredth of a megabyte of text, long enough that
// a part's words repeat (the tokenizer encodes each distinct word once).
constexpr int64_t kPartBytes = 64 << 10;

// Whether `text`, which is not empty, begins with Unicode's White_Space.
bool BeginsWithSpace(absl::string_view text) {
  if (absl::ascii_isspace(text[0])) return true;
  for (const absl::string_view space :
       {"\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
        "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85",
        "\xe2\x80\x86", "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89",
        "\xe2\x80\x8a", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf",
        "\xe2\x81\x9f", "\xe3\x80\x80"}) {
    if (absl::StartsWith(text, space)) return true;
  }
  return false;
}

// Whether a pre-token ends after the newline at `place` by every pattern in
// use. They join a newline only with white space, with what is before it, and
// with a '/' after it.
bool EndsPreToken(absl::string_view document, size_t place) {
  const char next = document[place + 1];
  if (absl::ascii_ispunct(next) ||
      BeginsWithSpace(document.substr(place + 1))) {
    return false;
  }
  size_t before = place;  // the character before the newline
  do {
    if (before == 0) return false;
    --before;
  } while ((document[before] & 0xc0) == 0x80 && place - before < 4);
  return !BeginsWithSpace(document.substr(before));
}

// Where to cut a document that is longer than kPartBytes: after the last
// newline (with `divide_between_pre_tokens` after the last that surely ends a
// pre-token, if there is one), else between two characters. `document` is its
// beginning, at least kPartBytes + 1 bytes.
int64_t CutLongDocument(absl::string_view document,
                        bool divide_between_pre_tokens) {
  for (size_t end = divide_between_pre_tokens ? kPartBytes : 0; end > 0;) {
    end = document.rfind('\n', end - 1);
    if (end == absl::string_view::npos) break;
    if (EndsPreToken(document, end)) return static_cast<int64_t>(end) + 1;
  }
  const size_t line_end = document.rfind('\n', kPartBytes - 1);
  if (line_end != absl::string_view::npos) {
    return static_cast<int64_t>(line_end) + 1;
  }
  int64_t cut = kPartBytes;
  while (cut > kPartBytes - 3 && (document[cut] & 0xc0) == 0x80) --cut;
  return cut;
}

// Reads a file sequentially, with one piece in memory at a time.
class FileText {
 public:
  FileText(RandomAccessFile file,
           const std::function<absl::Status()>* check_stop)
      : file_(std::move(file)), check_stop_(*check_stop) {}

  // The offset in the file at which Peek() begins.
  int64_t place() const {
    return read_ - static_cast<int64_t>(buffer_.size() - begin_);
  }
  // The next `bytes` bytes; fewer only at the end of the file.
  absl::StatusOr<absl::string_view> Peek(size_t bytes) {
    const int64_t left = file_.size() - read_;
    if (buffer_.size() - begin_ < bytes && left > 0) {
      if (check_stop_) RETURN_IF_ERROR(check_stop_());
      constexpr size_t kReadBytes = 1 << 20;
      const auto more = std::min<int64_t>(left, std::max(bytes, kReadBytes));
      buffer_.erase(0, std::exchange(begin_, 0));
      const size_t kept = buffer_.size();
      buffer_.resize(kept + more);
      RETURN_IF_ERROR(file_.Read(read_, more, buffer_.data() + kept));
      read_ += more;
    }
    return absl::string_view(buffer_).substr(begin_, bytes);
  }
  void Skip(int64_t bytes) { begin_ += bytes; }

 private:
  RandomAccessFile file_;
  const std::function<absl::Status()>& check_stop_;
  std::string buffer_;
  size_t begin_ = 0;  // number of skipped bytes of `buffer_`
  int64_t read_ = 0;  // bytes read from the file
};

// The encoding of a file that begins with a byte order mark other than UTF-8's;
// empty otherwise.
absl::string_view OtherEncoding(absl::string_view begin) {
  if (absl::StartsWith(begin, absl::string_view("\xff\xfe\0\0", 4))) {
    return "UTF-32";
  }
  if (absl::StartsWith(begin, "\xff\xfe") ||
      absl::StartsWith(begin, "\xfe\xff")) {
    return "UTF-16";
  }
  return "";
}

// Why `text`, at offset `place` of a file, is not valid text; empty if it is.
// `text` does not begin inside a character.
std::string WhyInvalid(const std::string& name, int64_t place,
                       absl::string_view text) {
  if (place == 0) {
    if (const auto encoding = OtherEncoding(text); !encoding.empty()) {
      return absl::StrCat(name, ", byte 0: has the byte order mark of ",
                          encoding);
    }
  }
  const size_t valid = Utf8PrefixBytes(text);
  const size_t nul = text.find('\0');
  if (nul < valid) {
    return absl::StrCat(name, ", byte ", place + nul,
                        ": a NUL byte, as binary files and UTF-16 have");
  }
  if (valid == text.size()) return "";
  return absl::StrFormat("%s, byte %d: 0x%02x is not UTF-8", name,
                         place + static_cast<int64_t>(valid),
                         static_cast<uint8_t>(text[valid]));
}

}  // namespace

absl::StatusOr<Corpus> Corpus::Scan(const std::vector<std::string>& files,
                                    const CorpusOptions& options) {
  Corpus corpus;
  for (size_t i = 0; i < files.size(); ++i) {
    const auto found = options.unpacked.find(files[i]);
    const UnpackedText text = found != options.unpacked.end()
                                  ? found->second
                                  : UnpackedText{files[i], options.separator};
    corpus.files_.push_back(text.path);
    Corpus file;
    RETURN_IF_ERROR(
        file.AddFile(files[i], text, static_cast<int32_t>(i), options));
    if (!file.skipped_.empty() &&
        options.invalid_text == InvalidText::kRefuse) {
      return absl::InvalidArgumentError(absl::StrCat(
          file.skipped_[0],
          "; text must be UTF-8: convert the file (iconv -t UTF-8), leave it "
          "out, or set --skip_invalid to skip such files"));
    }
    corpus.Append(std::move(file));
  }
  if (corpus.parts_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", files.size(), " input files hold no text"));
  }
  return corpus;
}

absl::Status Corpus::AddFile(const std::string& name, const UnpackedText& file,
                             int32_t index, const CorpusOptions& options) {
  ASSIGN_OR_RETURN(RandomAccessFile opened, RandomAccessFile::Open(file.path));
  FileText text(std::move(opened), &options.check_stop);
  const absl::string_view separator = file.separator;
  // Large enough to see whether a document is longer than a part.
  const size_t window = kPartBytes + std::max<size_t>(separator.size(), 1);
  bool is_utf8 = true;  // the document, so far
  while (true) {
    ASSIGN_OR_RETURN(const absl::string_view rest, text.Peek(window));
    if (rest.empty()) return absl::OkStatus();
    const size_t found =
        separator.empty() ? absl::string_view::npos : rest.find(separator);
    const auto document = static_cast<int64_t>(std::min(found, rest.size()));
    const bool ends = document <= kPartBytes;
    const int64_t size =
        ends ? document
             : CutLongDocument(rest, options.divide_between_pre_tokens);
    const Part part = {.begin = text.place(),
                       .file = index,
                       .bytes = static_cast<int32_t>(size),
                       .ends_document = ends};
    const absl::string_view bytes = rest.substr(0, part.bytes);
    if (options.invalid_text == InvalidText::kKeep) {
      is_utf8 = is_utf8 && IsUtf8(bytes);
    } else if (std::string why = WhyInvalid(name, part.begin, bytes);
               !why.empty()) {
      *this = Corpus();
      skipped_.push_back(std::move(why));
      return absl::OkStatus();
    }
    if (part.bytes > 0) parts_.push_back(part);
    bytes_ += part.bytes;
    text.Skip(part.bytes);
    if (!ends) continue;
    if (part.bytes > 0) ++documents_;
    if (!std::exchange(is_utf8, true)) ++non_utf8_documents_;
    if (found != absl::string_view::npos) {
      text.Skip(static_cast<int64_t>(separator.size()));
    }
  }
}

void Corpus::Append(Corpus other) {
  if (parts_.empty()) {
    parts_ = std::move(other.parts_);
  } else {
    parts_.insert(parts_.end(), other.parts_.begin(), other.parts_.end());
  }
  documents_ += other.documents_;
  bytes_ += other.bytes_;
  non_utf8_documents_ += other.non_utf8_documents_;
  skipped_.insert(skipped_.end(), other.skipped_.begin(), other.skipped_.end());
}

absl::Status Corpus::Read(const Part& part, std::string* text) const {
  ASSIGN_OR_RETURN(const RandomAccessFile file,
                   RandomAccessFile::Open(files_[part.file]));
  if (file.size() < part.begin + part.bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        file.path(), " became shorter than ", part.begin + part.bytes,
        " bytes while it was read; do not change the input, and start again"));
  }
  text->resize(part.bytes);
  return file.Read(part.begin, part.bytes, text->data());
}

}  // namespace tessera
