#include "trainers/generation/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "trainers/config/run_config.h"

namespace tessera {
namespace {

constexpr int64_t kMaxSamples = 1024;

// The tokens that may be drawn, most likely first; ties are ordered by token.
// Sorted as far as they are asked for: mostly the first few.
class Candidates {
 public:
  explicit Candidates(absl::Span<const float> logits)
      : logits_(logits), order_(logits.size()) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  int64_t operator[](size_t place) {
    while (place >= sorted_) {
      const size_t end =
          std::min(order_.size(), std::max<size_t>(64, 4 * sorted_));
      std::partial_sort(
          order_.begin() + sorted_, order_.begin() + end, order_.end(),
          [this](int64_t a, int64_t b) {
            return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
          });
      sorted_ = end;
    }
    return order_[place];
  }

 private:
  const absl::Span<const float> logits_;
  std::vector<int64_t> order_;
  size_t sorted_ = 0;  // how many of order_
};

// Skips stop tokens: one may precede the text without being part of it.
void Penalize(absl::Span<const int64_t> text, const SamplingOptions& options,
              absl::Span<float> logits) {
  const double penalty = options.repetition_penalty;
  if (penalty == 1) return;
  const std::set<int64_t> tokens(text.begin(), text.end());
  for (const int64_t token : tokens) {
    if (token >= static_cast<int64_t>(logits.size()) ||
        absl::c_linear_search(options.stop_tokens, token)) {
      continue;
    }
    float& logit = logits[token];
    logit = static_cast<float>(logit > 0 ? logit / penalty : logit * penalty);
  }
}

absl::StatusOr<int64_t> NextToken(absl::Span<const int64_t> text,
                                  absl::Span<float> logits,
                                  const SamplingOptions& options,
                                  std::mt19937_64& generator) {
  if (!absl::c_all_of(logits, [](float x) { return std::isfinite(x); })) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the model predicts no token after ", text.size(),
        ": its logits are not finite; use another checkpoint, or another "
        "precision"));
  }
  Penalize(text, options, logits);
  std::uniform_real_distribution<double> uniform(0, 1);
  return DrawToken(logits, options, uniform(generator));
}

}  // namespace

absl::Status Validate(const SamplingOptions& options) {
  std::string broken;
  auto require = [&](bool holds, absl::string_view rule) {
    if (!holds) absl::StrAppend(&broken, broken.empty() ? "" : "; ", rule);
  };
  require(std::isfinite(options.temperature) && options.temperature >= 0,
          absl::StrCat("temperature must be a finite number >= 0; is ",
                       options.temperature));
  require(options.top_k >= 0,
          absl::StrCat("top_k must be >= 0; is ", options.top_k));
  require(options.top_p > 0 && options.top_p <= 1,
          absl::StrCat("top_p must be in (0, 1]; is ", options.top_p));
  require(options.min_p >= 0 && options.min_p <= 1,
          absl::StrCat("min_p must be in [0, 1]; is ", options.min_p));
  // Logits stay finite.
  require(
      options.repetition_penalty >= 0.01 && options.repetition_penalty <= 100,
      absl::StrCat("repetition_penalty must be in [0.01, 100]; is ",
                   options.repetition_penalty));
  require(options.max_tokens >= 1 && options.max_tokens <= kMaxSampleTokens,
          absl::StrCat("max_tokens must be in [1, ", kMaxSampleTokens, "]; is ",
                       options.max_tokens));
  require(options.samples >= 1 && options.samples <= kMaxSamples,
          absl::StrCat("samples must be in [1, ", kMaxSamples, "]; is ",
                       options.samples));
  return broken.empty() ? absl::OkStatus() : absl::InvalidArgumentError(broken);
}

int64_t DrawToken(absl::Span<const float> logits,
                  const SamplingOptions& options, double uniform) {
  if (options.temperature == 0) {
    return std::max_element(logits.begin(), logits.end()) - logits.begin();
  }
  Candidates order(logits);
  const double most = logits[order[0]];
  // The weight of the likeliest token is 1.
  const auto weight = [&](int64_t token) {
    return std::exp((static_cast<double>(logits[token]) - most) /
                    options.temperature);
  };
  size_t kept = logits.size();
  if (options.top_k > 0) kept = std::min<size_t>(kept, options.top_k);
  double mass = 0;
  if (kept < logits.size()) {
    for (size_t i = 0; i < kept; ++i) mass += weight(order[i]);
  } else {
    // Weights below e^-40 change no sum.
    const double least = most - 40 * options.temperature;
    for (size_t token = 0; token < logits.size(); ++token) {
      if (logits[token] >= least) mass += weight(static_cast<int64_t>(token));
    }
  }
  if (options.top_p < 1 || options.min_p > 0) {
    const double enough = options.top_p * mass;
    const size_t most_kept = std::exchange(kept, 0);
    mass = 0;
    while (kept < most_kept && mass < enough &&
           weight(order[kept]) >= options.min_p) {
      mass += weight(order[kept++]);
    }
  }
  double target = uniform * mass;
  for (size_t i = 0; i < kept; ++i) {
    target -= weight(order[i]);
    if (target < 0) return order[i];
  }
  return order[kept - 1];
}

absl::Status Sample(NextTokenModel& model, const std::vector<int64_t>& prompt,
                    const SamplingOptions& options, TokenSink emit) {
  RETURN_IF_ERROR(Validate(options));
  const int64_t drawable =
      std::min(model.vocab(), options.vocab_size.value_or(model.vocab()));
  std::vector<std::vector<int64_t>> texts(options.samples, prompt);
  std::vector<std::mt19937_64> generators;
  for (int64_t i = 0; i < options.samples; ++i) {
    generators.emplace_back(options.seed + static_cast<uint64_t>(i));
  }
  // Samples that have ended stay in the batch; their tokens are ignored.
  std::vector<bool> active(options.samples, true);
  for (int64_t n = 0;
       n < options.max_tokens && absl::c_linear_search(active, true); ++n) {
    ASSIGN_OR_RETURN(std::vector<float> logits, model.LogitsAfter(texts));
    for (int64_t i = 0; i < options.samples; ++i) {
      if (!active[i]) {
        texts[i].push_back(texts[i].back());
        continue;
      }
      const absl::Span<float> row =
          absl::MakeSpan(logits).subspan(i * model.vocab(), drawable);
      ASSIGN_OR_RETURN(const int64_t token,
                       NextToken(texts[i], row, options, generators[i]));
      texts[i].push_back(token);
      active[i] = !absl::c_linear_search(options.stop_tokens, token);
      if (!active[i]) continue;
      ASSIGN_OR_RETURN(const bool continues, emit(i, token));
      active[i] = continues;
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
