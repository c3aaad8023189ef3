#include "framework/data/read/token_sequence.h"

#include <algorithm>
#include <utility>

#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/data/read/permutation.h"

namespace tessera {
namespace {

class FileSequence : public TokenSequence {
 public:
  explicit FileSequence(std::vector<TokenFile> files)
      : files_(std::move(files)) {
    int64_t end = 0;
    for (const TokenFile& file : files_) ends_.push_back(end += file.tokens());
  }

  int64_t tokens() const override { return ends_.empty() ? 0 : ends_.back(); }

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

class SyntheticSequence : public TokenSequence {
 public:
  explicit SyntheticSequence(const SyntheticOptions& options)
      : options_(options), permutation_(options.vocab_size, options.seed) {
    TESSERA_CHECK(options.successors >= 1 &&
                  options.successors <= options.vocab_size);
  }

  int64_t tokens() const override { return options_.tokens; }

  absl::Status Read(int64_t begin, absl::Span<int64_t> out) const override {
    const int64_t end = begin + static_cast<int64_t>(out.size());
    TESSERA_CHECK(begin >= 0 && end <= options_.tokens);
    int64_t token = 0;
    for (int64_t i = begin - begin % kChain; i < end; ++i) {
      token = Next(token, i);
      if (i >= begin) out[i - begin] = token;
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kChain = 4096;  // tokens between restarts

  int64_t Next(int64_t token, int64_t position) const {
    const uint64_t random = Mix(options_.seed, static_cast<uint64_t>(position));
    if (position % kChain == 0) return Below(random, options_.vocab_size);
    return (permutation_(token) + Below(random, options_.successors)) %
           options_.vocab_size;
  }

  // Uniform in [0, bound), except for a bias of bound / 2^64.
  static int64_t Below(uint64_t random, int64_t bound) {
    return static_cast<int64_t>(
        (static_cast<unsigned __int128>(random) * bound) >> 64);
  }

  const SyntheticOptions options_;
  const Permutation permutation_;
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
