#include "framework/data/read/data_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "framework/base/check.h"
#include "framework/base/ignored_target.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

absl::Status CheckRequest(const BatchRequest& r) {
  const bool valid = r.first_sample >= 0 && r.world_size >= 1 && r.rank >= 0 &&
                     r.rank < r.world_size && r.global_batch >= 1 &&
                     r.global_batch % r.world_size == 0;
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "invalid batch: sample ", r.first_sample, ", global batch ",
      r.global_batch, ", rank ", r.rank, " of ", r.world_size,
      "; the global batch must be a multiple of the number of ranks"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataSource>> DataSource::Create(
    std::shared_ptr<const TokenSequence> sequence, Options options) {
  if (options.context_length < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the context length must be at least 1; is ", options.context_length));
  }
  if (sequence->tokens() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.description, " has ", sequence->tokens(),
                     " tokens; training needs at least 2, a token and its "
                     "successor"));
  }
  return std::unique_ptr<DataSource>(
      new DataSource(std::move(sequence), std::move(options)));
}

DataSource::DataSource(std::shared_ptr<const TokenSequence> sequence,
                       Options options)
    : sequence_(std::move(sequence)),
      options_(std::move(options)),
      sampler_(sequence_->tokens(), options_.context_length, options_.shuffle,
               options_.seed) {}

absl::StatusOr<int64_t> DataSource::Fill(const BatchRequest& request,
                                         absl::Span<int64_t> ids,
                                         absl::Span<int64_t> targets) const {
  RETURN_IF_ERROR(CheckRequest(request));
  const int64_t share = request.share();
  const int64_t context = options_.context_length;
  TESSERA_CHECK(static_cast<int64_t>(ids.size()) == share * context &&
                targets.size() == ids.size());
  const int64_t begin = request.first_sample + request.rank * share;
  const int64_t end =
      std::min(request.first_sample + request.global_batch, request.end_sample);
  for (int64_t row = 0; row < share; ++row) {
    RETURN_IF_ERROR(FillRow(begin + row < end ? begin + row : -1,
                            ids.subspan(row * context, context),
                            targets.subspan(row * context, context)));
  }
  return sampler_.ValidTargets(request.first_sample, end);
}

absl::Status DataSource::FillRow(int64_t sample, absl::Span<int64_t> ids,
                                 absl::Span<int64_t> targets) const {
  int64_t valid = 0;
  if (sample >= 0) {
    const int64_t window = sampler_.Window(sample);
    valid = sampler_.ValidTargets(window);
    const int64_t begin = window * options_.context_length;
    // The targets are the inputs shifted by one, so the first token is read
    // separately.
    RETURN_IF_ERROR(sequence_->Read(begin, ids.first(1)));
    RETURN_IF_ERROR(sequence_->Read(begin + 1, targets.first(valid)));
    std::copy_n(targets.data(), valid - 1, ids.data() + 1);
  }
  std::fill(ids.begin() + valid, ids.end(), 0);
  std::fill(targets.begin() + valid, targets.end(), kIgnoredTarget);
  return absl::OkStatus();
}

}  // namespace tessera
