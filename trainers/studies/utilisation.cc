#include "trainers/studies/utilisation.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/device.h"
#include "framework/program/op.h"
#include "trainers/plan/step_rows.h"
#include "trainers/studies/sensed_work.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// On a CPU, smaller work and for a shorter time: it has no sensors.
struct Effort {
  int64_t gemm = 512, copy_bytes = int64_t{1} << 24;
  absl::Duration time = absl::Milliseconds(20);
};
constexpr Effort kGpuEffort = {
    .gemm = 8192, .copy_bytes = int64_t{1} << 30, .time = absl::Seconds(1)};

struct Work {
  std::string name;
  Cost cost;
  std::function<absl::Status()> run;
  int64_t tokens = 0;  // of the training step that it is a part of
};

// Calls an op of a program on random operands.
class OpCall {
 public:
  OpCall(const OpNode& node, const Program& program, const RunPlan& plan)
      : op_(*node.op), device_(plan.device.device) {
    for (int i = 0; i < op_.num_operands(); ++i) {
      operands_.push_back(Random(op_.operand(i)));
      TensorType gradient = op_.operand(i);
      if (program.info(node.operands[i]).parameter >= 0) {
        gradient.dtype = plan.precision[OpClass::kGradient];
      }
      d_operands_.push_back({Random(gradient)});
    }
    for (int i = 0; i < op_.num_results(); ++i) {
      results_.push_back(op_.AllocatesResults() ? at::Tensor()
                                                : Random(op_.result(i)));
      d_results_.push_back(i == 0 ? Random(op_.result(i)) : at::Tensor());
    }
  }

  absl::Status Forward() {
    return Run([this] {
      op_.Forward({.operands = operands_, .results = absl::MakeSpan(results_)});
    });
  }
  // After Forward().
  absl::Status Backward() {
    return Run([this] {
      op_.Backward({.operands = operands_,
                    .results = results_,
                    .d_results = d_results_,
                    .d_operands = d_operands_});
    });
  }

 private:
  at::Tensor Random(const TensorType& type) const {
    return at::randn(type.shape, at::TensorOptions(device_)).to(type.dtype);
  }
  static absl::Status Run(const std::function<void()>& call) {
    return StatusFromTorch([&] {
      const at::NoGradGuard no_grad;
      const at::AutoDispatchBelowADInplaceOrView below;
      call();
    });
  }

  const Op& op_;
  const c10::Device device_;
  std::vector<at::Tensor> operands_, results_, d_results_;
  std::vector<GradTarget> d_operands_;
};

class Utilisation {
 public:
  explicit Utilisation(Session& session)
      : session_(session),
        effort_(device().is_cuda() ? kGpuEffort : Effort()) {}

  absl::StatusOr<Json> Measure();

 private:
  const RunPlan& plan() const { return session_.plan(); }
  c10::Device device() const { return plan().device.device; }

  absl::Status Ceilings();
  absl::Status Ops();
  absl::Status WholeModel();
  absl::Status Add(const Work& work);

  Session& session_;
  const Effort effort_;
  Json work_ = Json::array();
  double gemm_tflops_ = 0, copy_gb_per_s_ = 0;
};

absl::Status Utilisation::Add(const Work& work) {
  RETURN_IF_ERROR(work.run());  // kernels are loaded and chosen
  ASSIGN_OR_RETURN(const SensedWork sensed,
                   RepeatUnderSensors(work.run, plan().device, effort_.time));
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
  if (sensed.joules.has_value() && work.tokens > 0) {
    figures["joules_per_token"] =
        *sensed.joules / static_cast<double>(work.tokens);
  }
  work_.push_back(std::move(figures));
  return absl::OkStatus();
}

absl::Status Utilisation::Ceilings() {
  const at::TensorOptions options(device());
  const at::ScalarType dtype = plan().precision[OpClass::kMatmul];
  const int64_t n = effort_.gemm;
  at::Tensor a, b, c, from, to;
  RETURN_IF_ERROR(StatusFromTorch([&] {
    a = at::randn({n, n}, options).to(dtype);
    b = at::randn({n, n}, options).to(dtype);
    c = at::empty({n, n}, options.dtype(dtype));
    from = at::zeros({effort_.copy_bytes}, options.dtype(at::kByte));
    to = at::empty_like(from);
  }));
  const double flops = 2.0 * static_cast<double>(n * n * n);
  RETURN_IF_ERROR(Add(
      {.name = absl::StrCat("GEMM ", n, "^3"),
       .cost = {.flops = flops,
                .bytes = static_cast<int64_t>(3 * c.nbytes()),
                .product_flops = flops},
       .run = [&] { return StatusFromTorch([&] { at::mm_out(c, a, b); }); }}));
  gemm_tflops_ = work_.back()["tflops"];
  RETURN_IF_ERROR(
      Add({.name = absl::StrCat("copy of ", effort_.copy_bytes >> 20, " MiB"),
           .cost = {.bytes = 2 * effort_.copy_bytes},
           .run = [&] { return StatusFromTorch([&] { to.copy_(from); }); }}));
  copy_gb_per_s_ = work_.back()["gb_per_s"];
  return absl::OkStatus();
}

absl::Status Utilisation::Ops() {
  const Program& program = plan().step->loss.program;
  std::set<std::string> seen;
  for (const OpNode& node : program.ops()) {
    const absl::string_view kind = node.op->kind();
    if (kind != "linear" && kind != "attention") continue;
    // "qkv" of "block_3/attention/qkv".
    const std::string name = node.name.substr(node.name.rfind('/') + 1);
    if (!seen.insert(name).second) continue;
    std::optional<OpCall> call;
    RETURN_IF_ERROR(
        StatusFromTorch([&] { call.emplace(node, program, plan()); }));
    RETURN_IF_ERROR(Add({.name = name + " forward",
                         .cost = node.op->ForwardCost(),
                         .run = [&] { return call->Forward(); }}));
    const Positions wanted = Positions::All(node.op->num_operands());
    RETURN_IF_ERROR(Add({.name = name + " backward",
                         .cost = node.op->BackwardCost(wanted),
                         .run = [&] { return call->Backward(); }}));
  }
  return absl::OkStatus();
}

absl::Status Utilisation::WholeModel() {
  Cost forward, backward, update;
  for (const StepRow& row : RowsOfStep(plan())) {
    Cost& cost = row.phase == "forward" ? forward
                 : row.phase == "backward" || row.phase == "recompute"
                     ? backward
                     : update;
    for (int64_t i = 0; i < row.count; ++i) cost += row.cost;
  }
  ASSIGN_OR_RETURN(const Batch batch, session_.train_loader().Load(0));
  TrainStep& step = session_.step();
  const int64_t tokens = plan().tokens_per_step();
  RETURN_IF_ERROR(Add({.name = "forward",
                       .cost = forward,
                       .run = [&] { return step.Forward(batch); },
                       .tokens = tokens}));
  backward += forward;
  RETURN_IF_ERROR(Add({.name = "forward and backward",
                       .cost = backward,
                       .run = [&] { return step.ForwardBackward(batch); },
                       .tokens = tokens}));
  update += backward;
  return Add({.name = "step",
              .cost = update,
              .run = [&] { return step.Run(batch, 1e-4); },
              .tokens = tokens});
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
