#include "bench/measure/dtype_observation.h"

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/ops/cross_entropy/cross_entropy.h"
#include "framework/ops/linear/linear.h"
#include "framework/program/autograd_op.h"
#include "framework/program/executor.h"
#include "framework/program/lifetime.h"
#include "framework/program/schedule.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kRows = 4, kIn = 20, kHidden = 10, kClasses = 5;

std::string Name(at::ScalarType dtype) { return std::string(DtypeName(dtype)); }
std::string DtypeOf(const at::Tensor& tensor) {
  return Name(tensor.scalar_type());
}

Weight Parameter(ProgramBuilder& b, const std::string& name,
                 std::vector<int64_t> shape, Init init) {
  return b.Parameter({name, {{name, std::move(shape), init}}});
}

// `statistics` becomes the dtype in which LibTorch computed mean and variance.
Value LayerNorm(ProgramBuilder& b, Value x, at::ScalarType* statistics) {
  const at::ScalarType master = b.dtype(OpClass::kMasterWeights);
  const Value gain =
      b.Read(Parameter(b, "norm.weight", {kHidden}, Init::kOnes), master);
  const Value bias =
      b.Read(Parameter(b, "norm.bias", {kHidden}, Init::kZeros), master);
  return AutogradOp(
      b,
      {.name = "norm",
       .function =
           [statistics, dtype = b.dtype(OpClass::kNormStatistics)](
               const std::vector<at::Tensor>& in) {
             const auto [y, mean, r] =
                 at::native_layer_norm(in[0].to(dtype), {kHidden},
                                       in[1].to(dtype), in[2].to(dtype), 1e-5);
             *statistics = mean.scalar_type();
             return y;
           }},
      {x, gain, bias}, {b.type(x).shape, b.dtype(OpClass::kActivation)});
}

struct ToyModel {
  Program program;
  Value x, targets, fc1, relu, norm, logits, loss;
};

absl::StatusOr<ToyModel> BuildToyModel(const ProgramTarget& target,
                                       at::ScalarType* statistics) {
  ProgramBuilder b(target);
  const Value x = b.Input("x", {{kRows, kIn}, at::kFloat});
  const Value targets = b.Input("targets", {{kRows}, at::kLong});
  const Value fc1 =
      Linear(b, x, Parameter(b, "fc1", {kHidden, kIn}, Init::kLinear));
  const Value relu = AutogradOp(
      b,
      {.name = "relu",
       .function =
           [](const std::vector<at::Tensor>& in) { return in[0].relu(); }},
      {fc1}, b.type(fc1));
  const Value norm = LayerNorm(b, relu, statistics);
  const Value logits =
      Linear(b, norm, Parameter(b, "fc2", {kClasses, kHidden}, Init::kLinear),
             {.dtype = b.dtype(OpClass::kLogits)});
  const Value loss = CrossEntropySum(b, logits, targets);
  for (const Value value : {fc1, relu, norm, logits, loss}) b.Output(value);
  ASSIGN_OR_RETURN(Program program, std::move(b).Build());
  return ToyModel{
      std::move(program), x, targets, fc1, relu, norm, logits, loss};
}

}  // namespace

absl::StatusOr<Json> ToyModelDtypes(const ProgramTarget& target) {
  at::ScalarType statistics = at::ScalarType::Undefined;
  ASSIGN_OR_RETURN(const ToyModel model, BuildToyModel(target, &statistics));
  const PrecisionPolicy& precision = target.precision;
  ASSIGN_OR_RETURN(
      const std::unique_ptr<ParameterStore> store,
      ParameterStore::Create(model.program.parameters(),
                             {.device = target.device.device,
                              .weights = WeightDtypesOf(precision),
                              .gradient = precision[OpClass::kGradient]}));
  const Schedule schedule = TrainingSchedule(model.program, model.loss);
  Json dtypes;
  RETURN_IF_ERROR(StatusFromTorch([&] {
    Executor executor(schedule, PlanLifetimes(schedule), *store);
    const auto on_device = at::TensorOptions(target.device.device);
    executor.SetInput(model.x, at::randn({kRows, kIn}, on_device));
    executor.SetInput(model.targets,
                      at::zeros({kRows}, on_device.dtype(at::kLong)));
    const at::ScalarType seed =
        schedule.values[schedule.loss_gradient].type.dtype;
    executor.SetInput(schedule.loss_gradient,
                      at::ones({}, on_device.dtype(seed)));
    executor.Run();
    dtypes = {{"parameters", Name(store->options().weights.master)},
              {"fc1", DtypeOf(executor.Get(model.fc1))},
              {"relu", DtypeOf(executor.Get(model.relu))},
              {"norm_statistics", Name(statistics)},
              {"norm", DtypeOf(executor.Get(model.norm))},
              {"logits", DtypeOf(executor.Get(model.logits))},
              {"loss", DtypeOf(executor.Get(model.loss))},
              {"gradients", DtypeOf(store->Get("fc1").grad())}};
  }));
  return dtypes;
}

Json LanguageModelDtypes(Session& session) {
  const TrainingState state = session.state();
  const Program& program = session.plan().step->loss.program;
  Json dtypes = {
      {"parameters", Name(state.parameters->options().weights.master)}};
  // Of the first op that has such a value.
  const auto add = [&](const char* part, Value value) {
    if (dtypes.contains(part)) return;
    dtypes[part] = Name(program.info(value).type.dtype);
  };
  for (const OpNode& node : program.ops()) {
    const absl::string_view kind = node.op->kind();
    if (kind == "embedding") add("residual", node.results[0]);
    if (kind == "rms_norm") {
      add("norm_statistics", node.results[1]);
      add("norm", node.results[0]);
    }
    if (kind == "linear") {
      add("matmul", node.operands[0]);
      add("weights", node.operands[1]);
    }
    if (kind == "attention") {
      add("attention", node.operands[0]);
      const Value last = node.results.back();
      if (absl::EndsWith(program.info(last).name, ".lse")) {
        add("softmax", last);
      }
    }
    if (kind == "swiglu" || kind == "relu_squared") {
      add("activation", node.results[0]);
    }
    if (kind == "cross_entropy") {
      add("logits", node.operands[0]);
      add("loss", node.results[0]);
    }
  }
  dtypes["gradients"] = DtypeOf(state.parameters->grad());
  dtypes["reduction"] = DtypeOf(session.step().metrics().grad_norm);
  dtypes["optimizer_state"] = DtypeOf(state.optimizer->exp_avg());
  return dtypes;
}

}  // namespace tessera
