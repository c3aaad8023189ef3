#include "trainers/dry_run.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "framework/base/terminal.h"
#include "framework/observe/format.h"
#include "trainers/build_info.h"
#include "trainers/config_loader.h"

namespace tessera {
namespace {

constexpr int kColumns = 80, kIndent = 14;

void AddLine(absl::string_view label, absl::string_view value,
             std::string* text) {
  absl::StrAppend(
      text, Fold(absl::StrFormat("%-12s%s", label, value), kColumns, kIndent),
      "\n");
}

}  // namespace

std::string FormatDryRun(const RunPlan& plan) {
  const ModelShape& m = plan.shape;
  const TrainingConfig& training = plan.config.training();
  const bool cuda = plan.device.is_cuda();
  std::string text;
  AddLine("build", BuildSummary(), &text);
  AddLine("config", absl::StrCat("hash ", ConfigHash(plan.config)), &text);
  AddLine("device",
          absl::StrCat(plan.device.name,
                       cuda ? ", " + FormatBytes(plan.device.total_bytes) : "",
                       ", ", FormatCountOf(plan.world.world_size, "rank")),
          &text);
  AddLine(
      "model",
      absl::StrCat(FormatCountOf(plan.num_parameters, "parameter"), ": ",
                   FormatCountOf(m.layers, "layer"), ", d_model ", m.d_model,
                   ", ", FormatCountOf(m.heads, "head"), " of ", m.head_dim(),
                   ", d_ff ", m.d_ff, ", vocabulary ", m.vocab),
      &text);
  AddLine(
      "step",
      absl::StrFormat("%s of %s in %s per rank: %s, %.4g TFLOP",
                      FormatCountOf(training.batch_size(), "sequence"),
                      FormatCountOf(m.context, "token"),
                      FormatCountOf(training.micro_batches(), "micro-batch"),
                      FormatCountOf(plan.tokens_per_step(), "token"),
                      plan.flops_per_token * plan.tokens_per_step() * 1e-12),
      &text);
  AddLine("precision", plan.precision.name(), &text);
  AddLine("attention",
          absl::StrCat(plan.backend.backend->name(), ": ", plan.backend.reason),
          &text);
  for (const AttentionBackend* backend : AttentionBackends()) {
    const absl::Status status = backend->Supports(plan.attention);
    AddLine("",
            absl::StrCat(backend->name(), ": ",
                         status.ok() ? "supported" : status.message()),
            &text);
  }
  absl::StrAppend(&text, FormatMemoryTable(plan.memory));
  return text;
}

}  // namespace tessera
