#include "framework/data/read/data_source.h"

#include <algorithm>
#include <numeric>
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

using Pairs = unsigned __int128;

// Pairs of a query and one of the `latest` keys up to it among `tokens` tokens.
Pairs CausalPairs(int64_t tokens, int64_t latest) {
  const auto all = static_cast<Pairs>(tokens);
  const auto growing = static_cast<Pairs>(std::min(tokens, latest));
  return growing * (growing + 1) / 2 + (all - growing) * growing;
}

// Those of tokens [begin, end) of one document, cut into rows.
Pairs CausalPairs(int64_t begin, int64_t end, int64_t context, int64_t latest) {
  const int64_t head = std::min(end - begin, context - begin % context);
  const int64_t rest = end - begin - head;
  return CausalPairs(head, latest) +
         static_cast<Pairs>(rest / context) * CausalPairs(context, latest) +
         CausalPairs(rest % context, latest);
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
               options_.seed),
      documents_(options_.separate_documents ? sequence_->documents()
                                             : DocumentIndex()) {}

absl::StatusOr<int64_t> DataSource::Fill(const BatchRequest& request,
                                         absl::Span<int64_t> ids,
                                         absl::Span<int64_t> targets,
                                         absl::Span<int64_t> positions) const {
  RETURN_IF_ERROR(CheckRequest(request));
  const int64_t share = request.share();
  const int64_t context = options_.context_length;
  TESSERA_CHECK(static_cast<int64_t>(ids.size()) == share * context &&
                targets.size() == ids.size() &&
                positions.size() ==
                    (options_.separate_documents ? ids.size() : 0));
  const int64_t begin = request.first_sample + request.rank * share;
  const int64_t end =
      std::min(request.first_sample + request.global_batch, request.end_sample);
  for (int64_t row = 0; row < share; ++row) {
    const auto part = [&](absl::Span<int64_t> tokens) {
      return tokens.empty() ? tokens : tokens.subspan(row * context, context);
    };
    RETURN_IF_ERROR(FillRow(begin + row < end ? begin + row : -1,
                            {part(ids), part(targets), part(positions)}));
  }
  return ValidTargets(request.first_sample, end);
}

absl::Status DataSource::FillRow(int64_t sample, const Row& row) const {
  int64_t valid = 0;
  DocumentIndex documents;
  if (sample >= 0) {
    const int64_t window = sampler_.Window(sample);
    valid = sampler_.ValidTargets(window);
    documents = WindowDocuments(window);
    const int64_t begin = window * options_.context_length;
    // The targets are the inputs shifted by one, so the first token is read
    // separately.
    RETURN_IF_ERROR(sequence_->Read(begin, row.ids.first(1)));
    RETURN_IF_ERROR(sequence_->Read(begin + 1, row.targets.first(valid)));
    std::copy_n(row.targets.data(), valid - 1, row.ids.data() + 1);
  }
  std::fill(row.ids.begin() + valid, row.ids.end(), 0);
  std::fill(row.targets.begin() + valid, row.targets.end(), kIgnoredTarget);
  if (!options_.separate_documents) return absl::OkStatus();

  int64_t segment = 0;
  const auto end_segment = [&](int64_t end) {
    std::iota(row.positions.begin() + segment, row.positions.begin() + end,
              int64_t{0});
    segment = end;
  };
  for (int64_t i = 0; i < documents.size(); ++i) {
    end_segment(documents[i]);
    if (!options_.train_across_documents) {
      row.targets[documents[i] - 1] = kIgnoredTarget;
    }
  }
  end_segment(valid);
  end_segment(options_.context_length);
  return absl::OkStatus();
}

double DataSource::CausalPairsPerRow(int64_t latest) const {
  const int64_t context = options_.context_length;
  if (!options_.separate_documents) {
    return static_cast<double>(CausalPairs(context, latest));
  }
  Pairs pairs = 0;
  int64_t begin = 0;
  const auto add = [&](int64_t end) {
    pairs += CausalPairs(begin, end, context, latest);
    begin = end;
  };
  // The last token is only a target.
  const DocumentIndex inputs = documents_.Slice(0, tokens() - 1);
  for (int64_t i = 0; i < inputs.size(); ++i) add(inputs[i]);
  add(tokens() - 1);
  add(windows() * context);  // the padding
  return static_cast<double>(pairs) / static_cast<double>(windows());
}

DocumentIndex DataSource::WindowDocuments(int64_t window) const {
  const int64_t begin = window * options_.context_length;
  return documents_.Slice(begin, begin + sampler_.ValidTargets(window) + 1);
}

int64_t DataSource::ValidTargets(int64_t begin, int64_t end) const {
  int64_t valid = sampler_.ValidTargets(begin, end);
  if (options_.separate_documents && !options_.train_across_documents) {
    for (int64_t sample = begin; sample < end; ++sample) {
      valid -= WindowDocuments(sampler_.Window(sample)).size();
    }
  }
  return std::max<int64_t>(valid, 1);
}

}  // namespace tessera
