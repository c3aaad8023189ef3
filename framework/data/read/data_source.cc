#include "framework/data/read/data_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

// framework/ops/cross_entropy.h's; that header needs LibTorch.
constexpr int64_t kIgnoredTarget = -1;

absl::Status CheckRequest(const BatchRequest& r) {
  const bool valid =
      r.first_sample >= 0 && r.world_size >= 1 && r.micro_batches >= 1 &&
      r.rank >= 0 && r.rank < r.world_size && r.micro_batch >= 0 &&
      r.micro_batch < r.micro_batches && r.global_batch >= 1 &&
      r.global_batch % (int64_t{r.world_size} * r.micro_batches) == 0;
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "no batch: sample ", r.first_sample, ", global batch ", r.global_batch,
      ", rank ", r.rank, " of ", r.world_size, ", micro-batch ", r.micro_batch,
      " of ", r.micro_batches,
      "; the global batch must be a multiple of ranks times micro-batches"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataSource>> DataSource::Create(
    std::shared_ptr<const TokenSequence> sequence, Options options) {
  if (options.context_length < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "context length ", options.context_length, "; must be at least 1"));
  }
  if (sequence->tokens() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.description, ": ", sequence->tokens(),
                     " tokens; a token and its successor are the least that "
                     "can be trained on"));
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

absl::Status DataSource::Fill(const BatchRequest& request, Batch* batch) const {
  RETURN_IF_ERROR(CheckRequest(request));
  const int64_t parts = int64_t{request.world_size} * request.micro_batches;
  const int64_t part =
      int64_t{request.rank} * request.micro_batches + request.micro_batch;
  batch->batch = request.global_batch / parts;
  batch->context = options_.context_length;
  batch->ids.resize(batch->batch * batch->context);
  batch->targets.resize(batch->batch * batch->context);
  const int64_t begin = request.first_sample + part * batch->batch;
  const int64_t end =
      std::min(request.first_sample + request.global_batch, request.end_sample);
  batch->global_valid_targets =
      sampler_.ValidTargets(request.first_sample, end);
  for (int64_t row = 0; row < batch->batch; ++row) {
    RETURN_IF_ERROR(FillRow(begin + row < end ? begin + row : -1, row, batch));
  }
  return absl::OkStatus();
}

absl::Status DataSource::FillRow(int64_t sample, int64_t row,
                                 Batch* batch) const {
  const int64_t context = options_.context_length;
  const auto ids = absl::MakeSpan(batch->ids).subspan(row * context, context);
  const auto targets =
      absl::MakeSpan(batch->targets).subspan(row * context, context);
  int64_t valid = 0;
  if (sample >= 0) {
    const int64_t window = sampler_.Window(sample);
    valid = sampler_.ValidTargets(window);
    // The inputs are one token and the targets shifted right by one.
    RETURN_IF_ERROR(sequence_->Read(window * context, ids.first(1)));
    RETURN_IF_ERROR(
        sequence_->Read(window * context + 1, targets.first(valid)));
    std::copy_n(targets.data(), valid - 1, ids.data() + 1);
  }
  std::fill(ids.begin() + valid, ids.end(), 0);
  std::fill(targets.begin() + valid, targets.end(), kIgnoredTarget);
  return absl::OkStatus();
}

}  // namespace tessera
