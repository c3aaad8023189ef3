#include "trainers/plan/dry_run.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "attention_backends/backend_table.h"
#include "framework/base/terminal.h"
#include "framework/cuda/device_spec.h"
#include "framework/observe/format.h"
#include "trainers/build_info.h"
#include "trainers/config/config_loader.h"

namespace tessera {
namespace {

constexpr int kColumns = 80, kIndent = 14;

void AddLine(absl::string_view label, absl::string_view value,
             std::string* text) {
  absl::StrAppend(
      text, Fold(absl::StrFormat("%-12s%s", label, value), kColumns, kIndent),
      "\n");
}

// The rows after the backward pass. `bytes` are those of the flat buffers.
std::vector<StepRow> UpdateRows(const RunPlan& plan) {
  const MemoryReport& memory = plan.memory.report;
  const at::ScalarType dtype = plan.precision[OpClass::kGradient];
  const int64_t count =
      memory.gradients / static_cast<int64_t>(c10::elementSize(dtype));
  const double trained = static_cast<double>(count);
  const std::string gradients = ToString(TensorType{{count}, dtype});
  const std::string own = plan.device.is_cuda() ? "own kernel" : "host loops";
  std::vector<StepRow> rows;
  if (const int ranks = plan.world.world_size; ranks > 1) {
    // Ring all-reduce: each rank sends and receives 2 (R - 1) / R of the
    // buffer.
    rows.push_back(
        {.phase = "reduce",
         .name = "gradients",
         .kind = "all_reduce",
         .kernel = plan.device.is_cuda() ? "NCCL" : "Gloo",
         .output = gradients,
         .cost = {.flops = trained,
                  .bytes = 4 * memory.gradients * (ranks - 1) / ranks}});
  }
  rows.push_back({.phase = "clip",
                  .name = "gradient norm",
                  .kind = "sum_of_squares",
                  .kernel = own,
                  .output = "FP32 []",
                  .cost = {.flops = 2 * trained, .bytes = memory.gradients}});
  // Masters and moments are read and written, the shadow is written. The frozen
  // parts of masters and shadow are not touched.
  const double share =
      trained /
      static_cast<double>(memory.parameters /
                          static_cast<int64_t>(c10::elementSize(
                              plan.precision[OpClass::kMasterWeights])));
  rows.push_back(
      {.phase = "optimizer",
       .name = "weights",
       .kind = "adamw",
       .kernel = own,
       .output = ToString(
           TensorType{{count}, plan.precision[OpClass::kMasterWeights]}),
       .cost = {.flops = 12 * trained,
                .bytes = memory.gradients + 2 * memory.optimizer +
                         static_cast<int64_t>(
                             share * static_cast<double>(2 * memory.parameters +
                                                         memory.shadow))}});
  return rows;
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
  absl::StrAppend(&text, FormatMemoryTable(plan.memory.report));
  AddLine("peak",
          absl::StrCat("during ", plan.memory.peak,
                       "; live tensors outside of the gradient buffer, by "
                       "kind of op:"),
          &text);
  for (const auto& [kind, bytes] : plan.memory.by_kind) {
    absl::StrAppendFormat(&text, "  %-15s %12s", kind,
                          FormatBytes(bytes.activations));
    if (bytes.gradients > 0) {
      absl::StrAppend(&text, ", gradients ", FormatBytes(bytes.gradients));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

DeviceRates RatesOf(const RunPlan& plan) {
  DeviceRates rates;
  if (const DeviceSpec* spec = FindDeviceSpec(plan.device.name)) {
    rates.product_flops_per_s =
        spec->tflops(ProductKindOf(plan.precision)) * 1e12;
    rates.vector_flops_per_s = spec->fp32 * 1e12;
    rates.bytes_per_s = spec->memory_gb_per_s * 1e9;
  }
  if (plan.config.observe().has_peak_tflops()) {
    rates.product_flops_per_s = plan.config.observe().peak_tflops() * 1e12;
  }
  return rates;
}

std::vector<StepRow> RowsOfStep(const RunPlan& plan) {
  const DeviceRates rates = RatesOf(plan);
  const StepPlan& step = *plan.step;
  std::vector<StepRow> rows = StepRows(step.train, step.train_lifetimes, rates);
  for (StepRow& row : rows) row.count *= step.micro_batches;
  for (StepRow& row : UpdateRows(plan)) {
    row.seconds = RooflineSeconds(row.cost, rates);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace tessera
