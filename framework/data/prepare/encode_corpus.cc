#include "framework/data/prepare/encode_corpus.h"

#include <string>
#include <utility>

#include "framework/base/status_macros.h"
#include "framework/data/prepare/parallel_for.h"

namespace tessera {
namespace {

// Bytes of text that a thread encodes between synchronizations: about a second
// of work, so that waiting for the slowest thread costs little.
constexpr int64_t kBytesPerThread = 4 << 20;

struct EncodedPart {
  absl::Status status;
  std::vector<int32_t> ids;
};

EncodedPart EncodePart(const Corpus& corpus, const Tokenizer& tokenizer,
                       size_t index) {
  const Corpus::Part& part = corpus.parts()[index];
  std::string text;
  if (absl::Status read = corpus.Read(part, &text); !read.ok()) {
    return {std::move(read), {}};
  }
  const bool begins_document =
      index == 0 || corpus.parts()[index - 1].ends_document;
  absl::StatusOr<std::vector<int32_t>> ids =
      begins_document ? tokenizer.Encode(text)
                      : tokenizer.EncodeContinued(text);
  if (!ids.ok()) return {ids.status(), {}};
  if (begins_document) {
    const std::vector<int32_t> begin = tokenizer.begin_ids();
    ids->insert(ids->begin(), begin.begin(), begin.end());
  }
  if (part.ends_document) ids->push_back(tokenizer.eos_id());
  return {absl::OkStatus(), *std::move(ids)};
}

}  // namespace

absl::Status EncodeCorpus(const Corpus& corpus, const Tokenizer& tokenizer,
                          int threads, PartSink sink) {
  const std::vector<Corpus::Part>& parts = corpus.parts();
  for (size_t begin = 0; begin < parts.size();) {
    size_t end = begin;
    for (int64_t bytes = 0;
         end < parts.size() && bytes < kBytesPerThread * threads; ++end) {
      bytes += parts[end].bytes;
    }
    std::vector<EncodedPart> encoded(end - begin);
    ParallelFor(threads, encoded.size(), [&](size_t i) {
      encoded[i] = EncodePart(corpus, tokenizer, begin + i);
    });
    for (size_t i = 0; i < encoded.size(); ++i) {
      RETURN_IF_ERROR(encoded[i].status);
      RETURN_IF_ERROR(sink(parts[begin + i], encoded[i].ids));
    }
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace tessera
