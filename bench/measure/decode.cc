#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/cached_attention.h"
#include "bench/measure/measurement.h"
#include "bench/measure/timing.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/device_spec.h"
#include "trainers/generation/next_token.h"
#include "trainers/generation/sampling.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// The first tokens make the caches, and record a CUDA graph on a GPU.
constexpr size_t kWarmup = 4;
constexpr int kMostTokens = 64;

}  // namespace

double BytesOfToken(const RunPlan& plan) {
  const ModelShape& m = plan.shape;
  int64_t weights = plan.num_parameters;
  if (!m.tied_head) weights -= m.vocab * m.d_model;
  const auto size =
      static_cast<int64_t>(c10::elementSize(plan.precision[OpClass::kWeights]));
  int64_t keys = 0;
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const int64_t window = m.window(layer);
    keys += window == 0 ? m.context : std::min(m.context, window);
  }
  return static_cast<double>(weights * size +
                             CacheType(keys, plan.attention).bytes());
}

absl::Status MeasureDecode(TrainingCell& cell, Json& figures) {
  const RunPlan& plan = cell.plan();
  const auto context = static_cast<int>(plan.shape.context);
  SamplingOptions options;
  options.temperature = 0;
  options.max_tokens = std::min(kMostTokens, context / 2);
  if (options.max_tokens < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.context_length is ", context,
        "; to record DECODE it must be >= 4, for a prompt of half of it, a "
        "token that follows from the prompt and one that is timed"));
  }
  options.samples = static_cast<int>(plan.attention.b);
  std::vector<int64_t> prompt(context - options.max_tokens);
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<int64_t>(i) % plan.shape.vocab;
  }
  NextTokenModel model(plan, *cell.session().state().parameters);
  std::vector<double> ms;
  absl::Time begin = MonotonicNow();
  RETURN_IF_ERROR(Sample(model, prompt, options,
                         [&](int64_t sample, int64_t) -> absl::StatusOr<bool> {
                           if (sample > 0) return true;
                           ms.push_back(MsSince(begin));
                           begin = MonotonicNow();
                           return true;
                         }));
  figures["decode"]["prompt_ms"] = ms.front();
  ms.erase(ms.begin(), ms.begin() + std::min(ms.size() - 1, kWarmup));
  const Summary token = Summarize(std::move(ms));
  figures["decode"]["token_ms"] = ToJson(token);
  figures["decode"]["tokens_per_s"] =
      1e3 * static_cast<double>(options.samples) / token.median;
  const DeviceSpec* const spec = FindDeviceSpec(plan.device.name);
  if (spec == nullptr) return absl::OkStatus();
  const double least_ms = BytesOfToken(plan) / spec->memory_gb_per_s / 1e6;
  figures["decode"]["least_ms"] = least_ms;
  figures["decode"]["share_of_bandwidth_pct"] = 100 * least_ms / token.median;
  return absl::OkStatus();
}

}  // namespace tessera
