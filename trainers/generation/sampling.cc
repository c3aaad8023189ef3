#include "trainers/generation/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "framework/ops/cpu_rows.h"
#include "trainers/config/run_config.h"

namespace tessera {
namespace {

constexpr int64_t kMaxSamples = 1024;

// The tokens that may be drawn, most likely first; ties are ordered by token.
// Sorted as far as they are asked for: mostly the first few.
class Candidates {
 public:
  Candidates(absl::Span<const float> logits, double temperature)
      : logits_(logits), temperature_(temperature), keys_(logits.size()) {
    for (size_t token = 0; token < logits.size(); ++token) {
      keys_[token] = uint64_t{Rank(logits[token])} << 32 | token;
    }
    most_ = logits_[(*this)[0]];
  }

  int64_t operator[](size_t place) {
    while (place >= sorted_) {
      const size_t more = sorted_ == 0 ? kFirst : 16 * sorted_;
      const auto begin = keys_.begin() + sorted_;
      sorted_ = std::min(keys_.size(), more);
      const auto end = keys_.begin() + sorted_;
      if (more == kFirst) {
        std::partial_sort(begin, end, keys_.end());
      } else {  // faster if there are many
        if (end != keys_.end()) std::nth_element(begin, end, keys_.end());
        std::sort(begin, end);
      }
    }
    return static_cast<uint32_t>(keys_[place]);
  }

  // The largest logit.
  double most() const { return most_; }
  // Relative to the likeliest token, whose weight is 1.
  double WeightOf(float logit) const {
    return std::exp((static_cast<double>(logit) - most_) / temperature_);
  }
  double Weight(size_t place) {
    while (place >= weights_.size()) {
      weights_.push_back(WeightOf(logits_[(*this)[weights_.size()]]));
    }
    return weights_[place];
  }

 private:
  // The larger the logit, the smaller: integers sort faster. -0 is 0.
  static uint32_t Rank(float logit) {
    const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);
    return bits >> 31 == 0 ? 0x7fffffff - bits : bits;
  }

  static constexpr size_t kFirst = 64;  // are sorted first
  const absl::Span<const float> logits_;
  const double temperature_;
  double most_;
  std::vector<uint64_t> keys_;   // a rank and its token
  size_t sorted_ = 0;            // how many of keys_
  std::vector<double> weights_;  // of the first places
};

// What one sample draws its next token with.
struct Sampler {
  std::mt19937_64 generator;
  absl::flat_hash_set<int64_t> penalized;
};

std::vector<Sampler> MakeSamplers(const std::vector<int64_t>& prompt,
                                  const SamplingOptions& options) {
  absl::flat_hash_set<int64_t> penalized;
  if (options.repetition_penalty != 1) {
    penalized.insert(prompt.begin() + options.before_text, prompt.end());
  }
  std::vector<Sampler> samplers;
  for (int64_t i = 0; i < options.samples; ++i) {
    samplers.push_back(
        {.generator = std::mt19937_64(options.seed + static_cast<uint64_t>(i)),
         .penalized = penalized});
  }
  return samplers;
}

void Penalize(const absl::flat_hash_set<int64_t>& tokens, double penalty,
              absl::Span<float> logits) {
  for (const int64_t token : tokens) {
    if (token >= static_cast<int64_t>(logits.size())) continue;
    float& logit = logits[token];
    logit = static_cast<float>(logit > 0 ? logit / penalty : logit * penalty);
  }
}

absl::StatusOr<int64_t> NextToken(absl::Span<const int64_t> text,
                                  absl::Span<float> logits,
                                  const SamplingOptions& options,
                                  Sampler& sampler) {
  if (!absl::c_all_of(logits, [](float x) { return std::isfinite(x); })) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the model predicts no token after ", text.size(),
        ": its logits are not finite; use another checkpoint, or another "
        "precision"));
  }
  Penalize(sampler.penalized, options.repetition_penalty, logits);
  std::uniform_real_distribution<double> uniform(0, 1);
  const int64_t token = DrawToken(logits, options, uniform(sampler.generator));
  if (options.repetition_penalty != 1) sampler.penalized.insert(token);
  return token;
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
  Candidates order(logits, options.temperature);
  size_t kept = logits.size();
  if (options.top_k > 0) kept = std::min<size_t>(kept, options.top_k);
  double mass = 0;
  if (kept < logits.size()) {
    for (size_t i = 0; i < kept; ++i) mass += order.Weight(i);
  } else {
    // Weights below e^-40 change no sum.
    const double least = order.most() - 40 * options.temperature;
    for (const float logit : logits) {
      if (logit >= least) mass += order.WeightOf(logit);
    }
  }
  if (options.top_p < 1 || options.min_p > 0) {
    const double enough = options.top_p * mass;
    const size_t most_kept = std::exchange(kept, 0);
    mass = 0;
    while (kept < most_kept && mass < enough &&
           order.Weight(kept) >= options.min_p) {
      mass += order.Weight(kept++);
    }
  }
  double target = uniform * mass;
  for (size_t i = 0; i < kept; ++i) {
    target -= order.Weight(i);
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
  std::vector<Sampler> samplers = MakeSamplers(prompt, options);
  std::vector<absl::StatusOr<int64_t>> drawn(options.samples);
  // Samples that have ended stay in the batch; their tokens are ignored.
  std::vector<bool> active(options.samples, true);
  for (int64_t n = 0;
       n < options.max_tokens && absl::c_linear_search(active, true); ++n) {
    ASSIGN_OR_RETURN(std::vector<float> logits, model.LogitsAfter(texts));
    ForEachRow(options.samples, drawable, [&](int64_t i) {
      if (!active[i]) return;
      const absl::Span<float> row =
          absl::MakeSpan(logits).subspan(i * model.vocab(), drawable);
      drawn[i] = NextToken(texts[i], row, options, samplers[i]);
    });
    for (int64_t i = 0; i < options.samples; ++i) {
      ASSIGN_OR_RETURN(const int64_t token, drawn[i]);
      texts[i].push_back(token);
      if (!active[i]) continue;
      active[i] = !absl::c_linear_search(options.stop_tokens, token);
      if (!active[i]) continue;
      ASSIGN_OR_RETURN(const bool continues, emit(i, token));
      active[i] = continues;
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
