#include "framework/data/read/token_sequence.h"

#include <algorithm>
#include <utility>

#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/data/read/permutation.h"

namespace tessera {
namespace {

// The documents of `files`, which are concatenated.
DocumentIndex TakeDocuments(std::vector<TokenFile>& files) {
  std::vector<int64_t> starts;
  int64_t begin = 0;
  for (TokenFile& file : files) {
    if (begin > 0) starts.push_back(begin);
    for (const int64_t start : file.TakeDocumentStarts()) {
      starts.push_back(begin + start);
    }
    begin += file.tokens();
  }
  return DocumentIndex(std::move(starts));
}

class FileSequence : public TokenSequence {
 public:
  explicit FileSequence(std::vector<TokenFile> files)
      : files_(std::move(files)), documents_(TakeDocuments(files_)) {
    int64_t end = 0;
    for (const TokenFile& file : files_) ends_.push_back(end += file.tokens());
  }

  int64_t tokens() const override { return ends_.empty() ? 0 : ends_.back(); }
  DocumentIndex documents() const override { return documents_; }

  absl::Status Read(int64_t begin, absl::Span<int64_t> out) const override {
    size_t i =
        std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
    while (!out.empty()) {
      TESSERA_CHECK(i < files_.size(), "read past the last file");
      const int64_t place = begin - (ends_[i] - files_[i].tokens());
      const size_t count =
          std::min<size_t>(out.size(), files_[i].tokens() - place);
      RETURN_IF_ERROR(files_[i].Read(place, out.first(count)));
      out.remove_prefix(count);
      begin += static_cast<int64_t>(count);
      ++i;
    }
    return absl::OkStatus();
  }

 private:
  std::vector<TokenFile> files_;
  const DocumentIndex documents_;
  std::vector<int64_t> ends_;  // end of file i, in tokens of the sequence
};

class Subsequence : public TokenSequence {
 public:
  Subsequence(std::shared_ptr<const TokenSequence> whole, int64_t begin,
              int64_t end)
      : whole_(std::move(whole)), begin_(begin), end_(end) {
    TESSERA_CHECK(0 <= begin && begin <= end && end <= whole_->tokens());
  }

  int64_t tokens() const override { return end_ - begin_; }
  DocumentIndex documents() const override {
    return whole_->documents().Slice(begin_, end_);
  }

  absl::Status Read(int64_t begin, absl::Span<int64_t> out) const override {
    TESSERA_CHECK(begin >= 0 &&
                  begin + static_cast<int64_t>(out.size()) <= tokens());
    return whole_->Read(begin_ + begin, out);
  }

 private:
  const std::shared_ptr<const TokenSequence> whole_;
  const int64_t begin_;
  const int64_t end_;
};

// Uniform in [0, bound), except for a bias of bound / 2^64.
int64_t Below(uint64_t random, int64_t bound) {
  return static_cast<int64_t>(
      (static_cast<unsigned __int128>(random) * bound) >> 64);
}

DocumentIndex SyntheticDocuments(const SyntheticOptions& options) {
  std::vector<int64_t> starts;
  if (options.document_tokens == 0) return DocumentIndex();
  // Random numbers that no token depends on.
  const uint64_t key = Mix(options.seed, ~uint64_t{0});
  for (int64_t begin = 0;;) {
    const uint64_t random = Mix(key, starts.size());
    begin += 1 + Below(random, 2 * options.document_tokens - 1);
    if (begin >= options.tokens) return DocumentIndex(std::move(starts));
    starts.push_back(begin);
  }
}

class SyntheticSequence : public TokenSequence {
 public:
  explicit SyntheticSequence(const SyntheticOptions& options)
      : options_(options),
        permutation_(options.vocab_size, options.seed),
        documents_(SyntheticDocuments(options)) {
    TESSERA_CHECK(options.successors >= 1 &&
                  options.successors <= options.vocab_size);
  }

  int64_t tokens() const override { return options_.tokens; }
  DocumentIndex documents() const override { return documents_; }

  absl::Status Read(int64_t begin, absl::Span<int64_t> out) const override {
    const int64_t end = begin + static_cast<int64_t>(out.size());
    TESSERA_CHECK(begin >= 0 && end <= options_.tokens);
    const int64_t chain = begin - begin % kChain;
    const DocumentIndex documents = documents_.Slice(chain, end);
    int64_t document = 0;  // the next one
    int64_t token = 0;
    for (int64_t i = chain; i < end; ++i) {
      const bool starts_document =
          document < documents.size() && documents[document] == i - chain;
      if (starts_document) ++document;
      token = Next(token, i, starts_document);
      if (i >= begin) out[i - begin] = token;
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kChain = 4096;  // tokens between restarts

  int64_t Next(int64_t token, int64_t position, bool starts_document) const {
    const uint64_t random = Mix(options_.seed, static_cast<uint64_t>(position));
    if (position % kChain == 0 || starts_document) {
      return Below(random, options_.vocab_size);
    }
    return (permutation_(token) + Below(random, options_.successors)) %
           options_.vocab_size;
  }

  const SyntheticOptions options_;
  const Permutation permutation_;
  const DocumentIndex documents_;
};

}  // namespace

std::unique_ptr<TokenSequence> CreateFileSequence(
    std::vector<TokenFile> files) {
  return std::make_unique<FileSequence>(std::move(files));
}

std::unique_ptr<TokenSequence> CreateSubsequence(
    std::shared_ptr<const TokenSequence> whole, int64_t begin, int64_t end) {
  return std::make_unique<Subsequence>(std::move(whole), begin, end);
}

std::unique_ptr<TokenSequence> CreateSyntheticSequence(
    const SyntheticOptions& options) {
  return std::make_unique<SyntheticSequence>(options);
}

}  // namespace tessera
