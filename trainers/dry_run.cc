#include "trainers/dry_run.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/observe/format.h"
#include "trainers/build_info.h"
#include "trainers/config_loader.h"

namespace tessera {

std::string FormatDryRun(const RunPlan& plan) {
  const ModelShape& m = plan.shape;
  const TrainingConfig& training = plan.config.training();
  std::string text = absl::StrCat(
      "build       ", BuildSummary(), "\n", "config      hash ",
      ConfigHash(plan.config), "\n", "device      ", plan.device.name,
      plan.device.is_cuda()
          ? absl::StrCat(", ", FormatBytes(plan.device.total_bytes))
          : std::string(),
      ", ranks ", plan.world.world_size, "\n");
  absl::StrAppendFormat(
      &text,
      "model       %s parameters: %d layers, d_model %d, %d heads of %d, "
      "d_ff %d, vocabulary %d\n",
      FormatCount(plan.num_parameters), m.layers, m.d_model, m.heads,
      m.head_dim(), m.d_ff, m.vocab);
  absl::StrAppendFormat(
      &text,
      "step        %d sequences of %d tokens in %d micro-batches a rank: %s "
      "tokens, %.3f TFLOP\n",
      training.batch_size(), m.context, training.micro_batches(),
      FormatCount(plan.tokens_per_step()),
      plan.flops_per_token * plan.tokens_per_step() * 1e-12);
  absl::StrAppend(&text, "precision   ", plan.precision.name(), "\n",
                  "attention   ", plan.backend.backend->name(), ": ",
                  plan.backend.reason, "\n");
  for (const AttentionBackend* backend : AttentionBackends()) {
    const absl::Status status = backend->Supports(plan.attention);
    absl::StrAppend(&text, "            ", backend->name(), ": ",
                    status.ok() ? "supported" : status.message(), "\n");
  }
  absl::StrAppend(&text, FormatMemoryTable(plan.memory));
  return text;
}

}  // namespace tessera
