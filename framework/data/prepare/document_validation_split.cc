#include "framework/data/prepare/document_validation_split.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/base/status_macros.h"
#include "framework/data/read/permutation.h"

namespace tessera {
namespace {

// With at least this many parts, a choice with too few bytes is accepted, so
// that the splits of existing runs do not change.
constexpr size_t kManyParts = 1000;

// The offset at which the held-out tail of `text` begins: about `tail` bytes
// from the end, at a nearby start of a line if there is one, else between two
// characters. 0 if nothing can be held out or nothing is left to train on.
int64_t TailBegin(absl::string_view text, int64_t tail) {
  const auto bytes = static_cast<int64_t>(text.size());
  if (tail < 1) return 0;
  int64_t begin = bytes - tail;
  // The nearest newline, before or after.
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

// Holds out about the last `bytes` bytes of a part. Returns false if it cannot.
absl::StatusOr<bool> HoldOutTail(size_t index, int64_t bytes, Corpus* corpus) {
  std::string text;
  std::vector<Corpus::Part>& parts = corpus->parts();
  RETURN_IF_ERROR(corpus->Read(parts[index], &text));
  const int64_t begin = TailBegin(text, bytes);
  if (begin == 0) return false;
  Corpus::Part tail = parts[index];
  tail.begin += begin;
  tail.bytes -= begin;
  tail.is_validation = true;
  parts[index].bytes = begin;
  parts.insert(parts.begin() + index + 1, tail);
  return true;
}

// Holds out that fraction of the bytes, taking parts in `order`. Returns false
// if the fraction is too small.
absl::StatusOr<bool> HoldOutBytes(double fraction,
                                  absl::Span<const size_t> order,
                                  Corpus* corpus) {
  std::vector<Corpus::Part>& parts = corpus->parts();
  auto left = static_cast<int64_t>(fraction * corpus->bytes());
  bool any = false;
  for (const size_t i : order) {
    if (parts[i].bytes > left) {
      ASSIGN_OR_RETURN(const bool tail, HoldOutTail(i, left, corpus));
      return any || tail;
    }
    parts[i].is_validation = any = true;
    left -= parts[i].bytes;
  }
  return any;
}

// Holds out the chosen parts. Returns false, and does nothing, if their share
// of the bytes is far from the fraction.
bool HoldOutParts(double fraction, absl::Span<const size_t> chosen,
                  Corpus* corpus) {
  std::vector<Corpus::Part>& parts = corpus->parts();
  int64_t bytes = 0;
  for (const size_t i : chosen) bytes += parts[i].bytes;
  const double wanted = fraction * corpus->bytes();
  const bool too_few = bytes < wanted / 2 && parts.size() < kManyParts;
  if (too_few || bytes > wanted * 2) return false;
  for (const size_t i : chosen) parts[i].is_validation = true;
  return true;
}

absl::Status ChooseParts(double fraction, uint64_t seed, Corpus* corpus) {
  std::vector<Corpus::Part>& parts = corpus->parts();
  std::vector<size_t> order(parts.size());
  std::iota(order.begin(), order.end(), 0);
  if (corpus->documents() == 1) {
    std::reverse(order.begin(), order.end());
    ASSIGN_OR_RETURN(const bool any, HoldOutBytes(fraction, order, corpus));
    if (any) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the text is a single document of ", corpus->bytes(),
        " bytes, too short to hold out ", fraction,
        " of it for validation; add text or set --validation_fraction=0"));
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return Mix(seed, a) < Mix(seed, b); });
  const auto count = std::max<size_t>(1, std::llround(fraction * parts.size()));
  if (HoldOutParts(fraction, absl::MakeConstSpan(order).first(count), corpus)) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const bool any, HoldOutBytes(fraction, order, corpus));
  if (!any) parts[order[0]].is_validation = true;
  return absl::OkStatus();
}

}  // namespace

absl::Status HoldOutDocuments(double fraction, uint64_t seed, Corpus* corpus) {
  if (fraction == 0) return absl::OkStatus();
  RETURN_IF_ERROR(ChooseParts(fraction, seed, corpus));
  // A document ends where its next part is on the other side.
  std::vector<Corpus::Part>& parts = corpus->parts();
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i - 1].is_validation != parts[i].is_validation) {
      parts[i - 1].ends_document = true;
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
