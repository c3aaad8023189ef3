#include "trainers/plan/dry_run.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "attention_backends/backend_table.h"
#include "framework/base/terminal.h"
#include "framework/observe/format.h"
#include "trainers/build_info.h"
#include "trainers/config/config_loader.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

void AddLine(absl::string_view label, absl::string_view value,
             std::string* text) {
  absl::StrAppend(text, LabelledLine(label, value, /*indent=*/14));
}

// "1,048,576+" where the search ended.
std::string LargestOf(const LargestValue& value) {
  if (value.largest == 0) return "none";
  return absl::StrCat(FormatCount(value.largest), value.at_limit ? "+" : "");
}

void AddLargest(const LargestValue& value, absl::string_view note,
                std::string* text) {
  absl::StrAppendFormat(text, "  %-22s %12s   now %s%s\n", value.field,
                        LargestOf(value), FormatCount(value.now), note);
}

void AddAlternatives(absl::string_view field,
                     const std::vector<Alternative>& alternatives,
                     std::string* text) {
  absl::StrAppendFormat(text, "  %-22s %12s %10s %10s %14s\n", field, "memory",
                        "TFLOP", "best ms", "largest batch");
  for (const Alternative& a : alternatives) {
    absl::StrAppendFormat(text, "  %-22s %12s %10.4g %10s %14s\n",
                          absl::StrCat(a.current ? "* " : "  ", a.value),
                          FormatBytes(a.bytes), a.step_flops * 1e-12,
                          a.step_seconds.has_value()
                              ? absl::StrFormat("%.4g", *a.step_seconds * 1e3)
                              : "n/a",
                          LargestOf(a.largest_batch));
  }
}

std::string FormatWhatFits(const WhatFits& fits) {
  std::string text;
  AddLine("what fits",
          "the largest value of each field, the others unchanged:", &text);
  AddLargest(fits.batch, "", &text);
  AddLargest(fits.context, "", &text);
  AddLargest(fits.layers,
             fits.layers.largest > 0
                 ? absl::StrCat("; ", FormatCountOf(fits.parameters_of_layers,
                                                    "parameter"))
                 : "",
             &text);
  AddLine("trade-offs",
          "what other values would need, and take at best (the roofline of a "
          "step); * is this run:",
          &text);
  AddAlternatives("recompute.policy", fits.recompute, &text);
  AddAlternatives("attention.backend", fits.backends, &text);
  return text;
}

Json ToJson(const LargestValue& value) {
  return {{"now", value.now},
          {"largest", value.largest},
          {"at_limit", value.at_limit}};
}

Json ToJson(const std::vector<Alternative>& alternatives) {
  Json json = Json::array();
  for (const Alternative& a : alternatives) {
    json.push_back(
        {{"value", a.value},
         {"current", a.current},
         {"bytes", a.bytes},
         {"step_flops", a.step_flops},
         {"roofline_ms",
          a.step_seconds.has_value() ? Json(*a.step_seconds * 1e3) : Json()},
         {"largest_batch", a.largest_batch.largest},
         {"at_limit", a.largest_batch.at_limit}});
  }
  return json;
}

Json ToJson(const MemoryReport& report) {
  return {{"parameters", report.parameters},
          {"shadow", report.shadow},
          {"gradients", report.gradients},
          {"optimizer", report.optimizer},
          {"activations", report.activations},
          {"activation_gradients", report.activation_gradients},
          {"workspace", report.workspace},
          {"libraries", report.libraries},
          {"other", report.other},
          {"slack", report.slack},
          {"allocated", report.allocated()},
          {"fragmentation", report.fragmentation},
          {"reserved", report.reserved()},
          {"context", report.context},
          {"communication", report.communication},
          {"total", report.total()},
          {"capacity", *report.capacity}};
}

// Every backend, and whether it supports the run.
void AddBackends(const AttentionProblem& problem, std::string* text) {
  for (const AttentionBackend* backend : AttentionBackends()) {
    const absl::Status status = backend->Supports(problem);
    AddLine("",
            absl::StrCat(backend->name(), ": ",
                         status.ok() ? "supported" : status.message()),
            text);
  }
}

// What is live at the peak of memory, by kind of op.
void AddPeak(const PlannedMemory& memory, std::string* text) {
  AddLine("peak",
          absl::StrCat("during ", memory.peak,
                       "; live tensors outside of the gradient buffer, by "
                       "kind of op:"),
          text);
  for (const auto& [kind, bytes] : memory.by_kind) {
    absl::StrAppendFormat(text, "  %-15s %12s", kind,
                          FormatBytes(bytes.activations));
    if (bytes.gradients > 0) {
      absl::StrAppend(text, ", gradients ", FormatBytes(bytes.gradients));
    }
    absl::StrAppend(text, "\n");
  }
}

}  // namespace

std::string FormatDryRun(const RunPlan& plan, const WhatFits& fits) {
  const ModelShape& m = plan.shape;
  const TrainingConfig& training = plan.config.training();
  const bool cuda = plan.device.is_cuda();
  std::string text;
  if (plan.world.simulated) {
    AddLine("simulated", DescribeSimulation(plan.world), &text);
  }
  AddLine("build", BuildSummary(), &text);
  AddLine("config", absl::StrCat("hash ", ConfigHash(plan.config)), &text);
  AddLine("device",
          absl::StrCat(plan.device.name,
                       cuda ? ", " + FormatBytes(plan.device.total_bytes) : ""),
          &text);
  AddLine("layout", Describe(plan.layout), &text);
  AddLine(
      "model",
      absl::StrCat(FormatCountOf(plan.num_parameters, "parameter"), ": ",
                   FormatCountOf(m.layers, "layer"), ", d_model ", m.d_model,
                   ", ", FormatCountOf(m.heads, "head"), " of ", m.head_dim(),
                   ", d_ff ", m.d_ff, ", vocabulary ", m.vocab),
      &text);
  AddLine(
      "step",
      absl::StrFormat("%s of %s in %s per rank: %s, %s%.4g TFLOP",
                      FormatCountOf(training.batch_size(), "sequence"),
                      FormatCountOf(m.context, "token"),
                      FormatCountOf(training.micro_batches(), "micro-batch"),
                      FormatCountOf(plan.tokens_per_step(), "token"),
                      plan.attention.documents ? "at most " : "",
                      plan.flops_per_token * plan.tokens_per_step() * 1e-12),
      &text);
  AddLine("precision", plan.precision.name(), &text);
  AddLine("attention",
          absl::StrCat(plan.backend.backend->name(), ": ", plan.backend.reason),
          &text);
  AddBackends(plan.attention, &text);
  AddLine("execution", DescribeExecution(plan), &text);
  absl::StrAppend(&text, FormatMemoryTable(plan.memory.report));
  AddPeak(plan.memory, &text);
  return text + FormatWhatFits(fits);
}

Json DryRunToJson(const RunPlan& plan, const WhatFits& fits) {
  Json by_kind = Json::object();
  for (const auto& [kind, bytes] : plan.memory.by_kind) {
    by_kind[kind] = {{"activations", bytes.activations},
                     {"gradients", bytes.gradients}};
  }
  return {{"device", plan.device.name},
          {"simulated", DescribeSimulation(plan.world)},
          {"ranks", plan.world.world_size},
          {"zero", plan.layout.zero},
          {"config", ConfigHash(plan.config)},
          {"parameters", plan.num_parameters},
          {"tokens_per_step", plan.tokens_per_step()},
          {"flops_per_token", plan.flops_per_token},
          {"precision", plan.precision.name()},
          {"attention", plan.backend.backend->name()},
          {"execution", plan.step->graph ? "GRAPH" : "EAGER"},
          {"memory", ToJson(plan.memory.report)},
          {"peak", {{"at", plan.memory.peak}, {"by_kind", by_kind}}},
          {"fits", CheckFits(plan).ok()},
          {"largest",
           {{fits.batch.field, ToJson(fits.batch)},
            {fits.context.field, ToJson(fits.context)},
            {fits.layers.field, ToJson(fits.layers)}}},
          {"recompute", ToJson(fits.recompute)},
          {"backends", ToJson(fits.backends)}};
}

}  // namespace tessera
