#include "bench/measure/utilisation.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "bench/measure/device_work.h"
#include "bench/measure/sensed_work.h"
#include "framework/base/status_macros.h"
#include "framework/observe/block_path.h"
#include "models/transformer_block.h"
#include "trainers/plan/step_rows.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

class Utilisation {
 public:
  explicit Utilisation(Session& session)
      : session_(session),
        // A CPU has no sensors to wait for.
        time_(device().is_cuda() ? absl::Seconds(1) : absl::Milliseconds(20)) {}

  absl::StatusOr<Json> Measure();

 private:
  const RunPlan& plan() const { return session_.plan(); }
  c10::Device device() const { return plan().device.device; }

  std::string NameOf(const OpNode& node) const;
  absl::Status Ceilings();
  absl::Status Ops();
  absl::Status WholeModel();
  // `tokens`: of the training step that the work is a part of.
  absl::Status Add(const Work& work, int64_t tokens = 0);

  Session& session_;
  const absl::Duration time_;
  Json work_ = Json::array();
  double gemm_tflops_ = 0, copy_gb_per_s_ = 0;
};

absl::Status Utilisation::Add(const Work& work, int64_t tokens) {
  // Kernels are loaded and chosen, and in its third call a step records its
  // CUDA graph.
  for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(work.run());
  ASSIGN_OR_RETURN(const SensedWork sensed,
                   RepeatUnderSensors(work.run, plan().device, time_));
  const double ms = sensed.ms;
  Json figures = {{"work", work.name}, {"ms", ms}};
  if (work.cost.product_flops > 0) {
    figures["tflops"] = work.cost.product_flops / ms * 1e-9;
    figures["flop_per_byte"] =
        work.cost.product_flops / static_cast<double>(work.cost.bytes);
  }
  figures["gb_per_s"] = static_cast<double>(work.cost.bytes) / ms * 1e-6;
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value.has_value()) figures[name] = *value;
  };
  add("sm_mhz", sensed.gpu.sm_mhz);
  add("power_w", sensed.gpu.power_w);
  add("tensor_pct", sensed.gpu.tensor_percent);
  add("dram_pct", sensed.gpu.dram_percent);
  add("joules", sensed.joules);
  if (sensed.joules.has_value() && tokens > 0) {
    figures["joules_per_token"] = *sensed.joules / static_cast<double>(tokens);
  }
  work_.push_back(std::move(figures));
  return absl::OkStatus();
}

absl::Status Utilisation::Ceilings() {
  ASSIGN_OR_RETURN(
      const Work product,
      SquareProduct(plan().device, plan().precision[OpClass::kMatmul]));
  RETURN_IF_ERROR(Add(product));
  gemm_tflops_ = work_.back()["tflops"];
  ASSIGN_OR_RETURN(const Work copy, LargeCopy(plan().device));
  RETURN_IF_ERROR(Add(copy));
  copy_gb_per_s_ = work_.back()["gb_per_s"];
  return absl::OkStatus();
}

// "qkv" of "block_3/attention/qkv"; "attention (window of 512 keys)".
std::string Utilisation::NameOf(const OpNode& node) const {
  std::string name = node.name.substr(node.name.rfind('/') + 1);
  const absl::string_view block =
      absl::string_view(node.name).substr(0, node.name.find('/'));
  int64_t layer = 0;
  if (node.op->kind() != "attention" ||
      !absl::SimpleAtoi(BlockLabel(block), &layer)) {
    return name;
  }
  const ModelShape& shape = plan().shape;
  const MaskSpec mask = LayerMask(shape, layer, shape.context);
  if (mask.is_window()) absl::StrAppend(&name, " (", ToString(mask), ")");
  return name;
}

absl::Status Utilisation::Ops() {
  const Program& program = plan().step->loss.program;
  std::set<std::string> seen;
  for (const OpNode& node : program.ops()) {
    const absl::string_view kind = node.op->kind();
    if (kind != "linear" && kind != "attention") continue;
    const std::string name = NameOf(node);
    if (!seen.insert(name).second) continue;
    ASSIGN_OR_RETURN(
        const std::vector<Work> passes,
        PassesOf(node, program,
                 {.device = device(),
                  .gradient = plan().precision[OpClass::kGradient]}));
    for (const Work& pass : passes) {
      RETURN_IF_ERROR(Add({.name = absl::StrCat(name, " ", pass.name),
                           .cost = pass.cost,
                           .run = pass.run}));
    }
  }
  return absl::OkStatus();
}

absl::Status Utilisation::WholeModel() {
  // "forward" runs the evaluation list, because the forward pass of a step may
  // leave the head and the loss to the backward pass.
  const StepPlan& step_plan = *plan().step;
  Cost forward, both, update;
  for (const StepRow& row : StepRows(
           step_plan.evaluate, step_plan.evaluate_lifetimes, DeviceRates())) {
    for (int64_t i = 0; i < row.count; ++i) forward += row.cost;
  }
  for (const StepRow& row : RowsOfStep(plan())) {
    const bool is_update = row.phase != "forward" && row.phase != "backward" &&
                           row.phase != "recompute";
    Cost& cost = is_update ? update : both;
    for (int64_t i = 0; i < row.count; ++i) cost += row.cost;
  }
  ASSIGN_OR_RETURN(const Batch batch, session_.train_loader().Load(0));
  TrainStep& step = session_.step();
  const int64_t tokens = plan().tokens_per_step();
  RETURN_IF_ERROR(Add({.name = "forward",
                       .cost = forward,
                       .run = [&] { return step.Forward(batch); }},
                      tokens));
  RETURN_IF_ERROR(Add({.name = "forward and backward",
                       .cost = both,
                       .run = [&] { return step.ForwardBackward(batch); }},
                      tokens));
  update += both;
  return Add({.name = "step",
              .cost = update,
              .run = [&] { return step.Run(batch, 1e-4); }},
             tokens);
}

absl::StatusOr<Json> Utilisation::Measure() {
  RETURN_IF_ERROR(Ceilings());
  RETURN_IF_ERROR(Ops());
  RETURN_IF_ERROR(WholeModel());
  const double ridge = gemm_tflops_ / copy_gb_per_s_ * 1e3;
  double least = ridge, most = ridge;
  for (Json& work : work_) {
    work["copy_pct"] = 100 * work["gb_per_s"].get<double>() / copy_gb_per_s_;
    if (!work.contains("tflops")) continue;
    work["ceiling_pct"] = 100 * work["tflops"].get<double>() / gemm_tflops_;
    const double intensity = work["flop_per_byte"];
    least = std::min(least, intensity);
    most = std::max(most, intensity);
  }
  Json roof = Json::array();
  for (const double intensity : {least, ridge, most}) {
    const double tflops =
        std::min(gemm_tflops_, intensity * copy_gb_per_s_ * 1e-3);
    roof.push_back({{"flop_per_byte", intensity}, {"tflops", tflops}});
  }
  return Json{{"gemm_tflops", gemm_tflops_},
              {"copy_gb_per_s", copy_gb_per_s_},
              {"work", std::move(work_)},
              {"roof", std::move(roof)}};
}

}  // namespace

absl::StatusOr<Json> MeasureUtilisation(Session& session) {
  return Utilisation(session).Measure();
}

}  // namespace tessera
