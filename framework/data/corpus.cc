#include "framework/data/corpus.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <numeric>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "framework/base/mapped_file.h"
#include "framework/base/status_macros.h"
#include "framework/data/permutation.h"
#include "framework/data/utf8.h"

namespace tessera {
namespace {

// Short enough that a text of a megabyte has a hundredth to hold out, long
// enough that a part's words repeat (the tokenizer encodes each once).
constexpr int64_t kPartBytes = 64 << 10;

// From so many parts on, a fraction of them that has few bytes stays as it is:
// splits that runs were trained on do not change.
constexpr size_t kManyParts = 1000;

// Where to cut a document that goes on behind kPartBytes: behind the last line
// end, else between two characters.
int64_t PartBytes(absl::string_view document) {
  if (static_cast<int64_t>(document.size()) <= kPartBytes) {
    return static_cast<int64_t>(document.size());
  }
  const size_t line_end = document.rfind('\n', kPartBytes - 1);
  if (line_end != absl::string_view::npos) {
    return static_cast<int64_t>(line_end) + 1;
  }
  int64_t cut = kPartBytes;
  while (cut > kPartBytes - 3 && (document[cut] & 0xc0) == 0x80) --cut;
  return cut;
}

// Where the held-out tail of `text` begins: `tail` bytes from its end, at a
// line if there is one not far away, else between two characters. 0 where
// nothing can be held out, or trained on.
int64_t TailBegin(absl::string_view text, int64_t tail) {
  const auto bytes = static_cast<int64_t>(text.size());
  if (tail < 1) return 0;
  int64_t begin = bytes - tail;
  // The nearest line end, before or behind.
  for (int64_t away = 0; away <= tail / 2; ++away) {
    for (const int64_t line : {begin - away, begin + away}) {
      if (line > 0 && line < bytes && text[line - 1] == '\n') return line;
    }
  }
  for (int i = 0; i < 3 && begin > 0; ++i) {
    if ((text[begin] & 0xc0) != 0x80) break;
    --begin;
  }
  return begin;
}

}  // namespace

absl::StatusOr<Corpus> Corpus::Scan(const std::vector<std::string>& files,
                                    const CorpusOptions& options) {
  Corpus corpus;
  corpus.files_ = files;
  for (size_t i = 0; i < files.size(); ++i) {
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(files[i]));
    corpus.AddFile(static_cast<int32_t>(i), file.bytes(), options.separator);
  }
  RETURN_IF_ERROR(corpus.HoldOut(options));
  return corpus;
}

void Corpus::AddFile(int32_t file, absl::string_view text,
                     absl::string_view separator) {
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t found = separator.empty() ? absl::string_view::npos
                                           : text.find(separator, begin);
    const size_t end = std::min(found, text.size());
    AddDocument(file, static_cast<int64_t>(begin),
                text.substr(begin, end - begin));
    begin = end + separator.size();
  }
}

void Corpus::AddDocument(int32_t file, int64_t begin,
                         absl::string_view document) {
  if (!IsUtf8(document)) ++non_utf8_documents_;
  bytes_ += static_cast<int64_t>(document.size());
  if (!document.empty()) ++documents_;
  while (!document.empty()) {
    const int64_t bytes = PartBytes(document);
    document.remove_prefix(bytes);
    parts_.push_back({file, begin, bytes, document.empty(), false});
    begin += bytes;
  }
}

absl::Status Corpus::HoldOut(const CorpusOptions& options) {
  if (parts_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", files_.size(), " input files hold no text"));
  }
  const double fraction = options.validation_fraction;
  if (fraction == 0) return absl::OkStatus();
  std::vector<size_t> order(parts_.size());
  std::iota(order.begin(), order.end(), 0);
  if (documents_ == 1) {
    std::reverse(order.begin(), order.end());
    ASSIGN_OR_RETURN(const bool any, HoldOutBytes(fraction, order));
    if (any) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the text is a single document of ", bytes_, " bytes, too short to ",
        "hold out ", fraction, " of it for validation; add text or set ",
        "--validation_fraction=0"));
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return Mix(options.seed, a) < Mix(options.seed, b);
  });
  const auto count =
      std::max<size_t>(1, std::llround(fraction * parts_.size()));
  if (HoldOutParts(fraction, absl::MakeConstSpan(order).first(count))) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const bool any, HoldOutBytes(fraction, order));
  if (!any) parts_[order[0]].is_validation = true;
  return absl::OkStatus();
}

bool Corpus::HoldOutParts(double fraction, absl::Span<const size_t> chosen) {
  int64_t bytes = 0;
  for (const size_t i : chosen) bytes += parts_[i].bytes;
  const double wanted = fraction * bytes_;
  const bool too_few = bytes < wanted / 2 && parts_.size() < kManyParts;
  if (too_few || bytes > wanted * 2) return false;
  for (const size_t i : chosen) parts_[i].is_validation = true;
  return true;
}

absl::StatusOr<bool> Corpus::HoldOutBytes(double fraction,
                                          absl::Span<const size_t> order) {
  auto left = static_cast<int64_t>(fraction * bytes_);
  bool any = false;
  for (const size_t i : order) {
    if (parts_[i].bytes > left) {
      ASSIGN_OR_RETURN(const bool tail, HoldOutTail(i, left));
      // What follows it in a single document is all held out.
      if (documents_ == 1) parts_[i].ends_document = true;
      return any || tail;
    }
    parts_[i].is_validation = any = true;
    left -= parts_[i].bytes;
  }
  return any;
}

absl::StatusOr<bool> Corpus::HoldOutTail(size_t index, int64_t bytes) {
  std::string text;
  RETURN_IF_ERROR(Read(parts_[index], &text));
  const int64_t begin = TailBegin(text, bytes);
  if (begin == 0) return false;
  Part tail = parts_[index];
  tail.begin += begin;
  tail.bytes -= begin;
  tail.is_validation = true;
  parts_[index].bytes = begin;
  parts_.insert(parts_.begin() + index + 1, tail);
  return true;
}

absl::Status Corpus::Read(const Part& part, std::string* text) const {
  const std::string& path = files_[part.file];
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  }
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  text->resize(part.bytes);
  int64_t done = 0;
  while (done < part.bytes) {
    const ssize_t got =
        pread(fd, text->data() + done, part.bytes - done, part.begin + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    }
    if (got == 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          path, " became shorter than ", part.begin + part.bytes,
          " bytes while it was read; leave the input alone and start again"));
    }
    done += got;
  }
  return absl::OkStatus();
}

}  // namespace tessera
