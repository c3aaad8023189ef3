#include "tests/framework/ops/ops_as_functions.h"

#include <memory>
#include <utility>

#include "ATen/ATen.h"
#include "framework/ops/cross_entropy/cross_entropy.h"
#include "framework/ops/embedding/embedding.h"
#include "framework/ops/linear/linear.h"
#include "framework/ops/residual/residual.h"
#include "framework/ops/rms_norm/rms_norm.h"
#include "framework/ops/swiglu/swiglu.h"
#include "framework/program/executor.h"
#include "tests/framework/ops/op_test_util.h"
#include "tests/testing/gradient_state.h"
#include "torch/csrc/autograd/custom_function.h"

namespace tessera::testing {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

DeviceInfo DeviceOf(at::Device device) {
  if (device.is_cuda()) return OpenCudaDevice(device.index()).value();
  return CpuDevice();
}

// A program of one op, ready to run.
struct Compiled : torch::CustomClassHolder {
  explicit Compiled(Program made) : program(std::move(made)) {}

  Program program;
  std::vector<Value> inputs;
  Value output;
  Schedule schedule;
  std::unique_ptr<ParameterStore> empty;  // if there is no parameter
  std::unique_ptr<Executor> executor;
};

c10::intrusive_ptr<Compiled> Compile(const FunctionOfTensors& function,
                                     const variable_list& inputs,
                                     at::Device device) {
  ProgramTarget target;
  target.device = DeviceOf(device);
  target.precision = function.precision;
  ProgramBuilder b(target);
  std::vector<Value> values;
  for (const at::Tensor& input : inputs) {
    values.push_back(b.Input("input",
                             {input.sizes().vec(), input.scalar_type()},
                             input.requires_grad()));
  }
  Weight weight;
  if (function.parameter != nullptr) {
    for (const ParameterSlice& p : StoreOf(*function.parameter).slices()) {
      b.Parameter({.name = p.name,
                   .members = {{p.name, p.shape}},
                   .trainable = p.trainable});
    }
    weight = {.parameter = 0};
  }
  const Value output = function.build(b, values, weight);
  b.Output(output);
  auto compiled = c10::make_intrusive<Compiled>(std::move(b).Build().value());
  compiled->inputs = std::move(values);
  compiled->output = output;
  compiled->schedule = TrainingSchedule(compiled->program, output);
  ParameterStore* store;
  if (function.parameter != nullptr) {
    store = &StoreOf(*function.parameter);
  } else {
    compiled->empty = ParameterStore::Create({}, {.device = device}).value();
    store = compiled->empty.get();
  }
  compiled->executor = std::make_unique<Executor>(
      compiled->schedule, PlanLifetimes(compiled->schedule), *store);
  return compiled;
}

class ProgramFunction : public torch::autograd::Function<ProgramFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, at::TensorList tensors,
                            const at::Tensor& anchor,
                            const FunctionOfTensors& function) {
    const variable_list inputs = tensors.vec();
    const auto compiled = Compile(function, inputs, inputs[0].device());
    for (size_t i = 0; i < inputs.size(); ++i) {
      compiled->executor->SetInput(compiled->inputs[i],
                                   inputs[i].detach().contiguous());
    }
    compiled->executor->Run(0, compiled->schedule.FirstBackward());
    ctx->saved_data["program"] = c10::IValue::make_capsule(compiled);
    ctx->saved_data["parameter"] =
        reinterpret_cast<int64_t>(function.parameter);
    // A new tensor, because its autograd history owns the executor, which must
    // not own the history.
    return compiled->executor->Get(compiled->output).detach();
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    const auto compiled = c10::static_intrusive_pointer_cast<Compiled>(
        ctx->saved_data["program"].toCapsule());
    const auto* parameter = reinterpret_cast<const Parameter*>(
        ctx->saved_data["parameter"].toInt());
    Executor& executor = *compiled->executor;
    executor.SetInput(compiled->schedule.loss_gradient, grads[0].contiguous());
    const bool trains = parameter != nullptr && parameter->trainable();
    Schedule& schedule = compiled->schedule;
    if (trains && !ClaimFirstGradWrite(*parameter)) {
      AddToGradients(&schedule);
    }
    executor.Run(schedule.FirstBackward(),
                 static_cast<int>(schedule.runs.size()));
    variable_list gradients(compiled->inputs.size() + 2);
    for (const auto& [input, gradient] : compiled->schedule.input_gradients) {
      for (size_t i = 0; i < compiled->inputs.size(); ++i) {
        if (compiled->inputs[i].index == input) {
          gradients[i] = executor.Get(gradient);
        }
      }
    }
    return gradients;
  }
};

at::ScalarType MasterDtype(const Parameter& parameter) {
  return StoreOf(parameter).options().weights.master;
}

}  // namespace

at::Tensor RunAsFunction(const FunctionOfTensors& function,
                         const std::vector<at::Tensor>& inputs) {
  // Stands in for the parameter, whose gradient autograd does not know.
  const bool trains =
      function.parameter != nullptr && function.parameter->trainable();
  const at::Tensor anchor = at::empty({0}).requires_grad_(trains);
  return ProgramFunction::apply(at::TensorList(inputs), anchor, function);
}

PrecisionPolicy PolicyFor(at::ScalarType dtype, at::ScalarType master) {
  const at::ScalarType wide = ArithmeticDtype(dtype);
  PrecisionPolicy policy = PrecisionPolicy::Uniform(dtype);
  for (const OpClass op : {OpClass::kNormStatistics, OpClass::kLoss,
                           OpClass::kSoftmax, OpClass::kReduction}) {
    policy = policy.With(op, wide);
  }
  return policy.With(OpClass::kMasterWeights, master);
}

at::Tensor Linear(const at::Tensor& x, Parameter& weight) {
  return RunAsFunction(
      {.build = [](ProgramBuilder& b, const std::vector<Value>& in,
                   Weight w) { return tessera::Linear(b, in[0], w); },
       .precision = PolicyFor(x.scalar_type(), MasterDtype(weight)),
       .parameter = &weight},
      {x});
}

at::Tensor RmsNorm(const at::Tensor& x, Parameter& gain, double eps,
                   at::ScalarType out_dtype) {
  return RunAsFunction(
      {.build = [eps](ProgramBuilder& b, const std::vector<Value>& in,
                      Weight w) { return tessera::RmsNorm(b, in[0], w, eps); },
       .precision = PolicyFor(x.scalar_type(), MasterDtype(gain))
                        .With(OpClass::kActivation, out_dtype),
       .parameter = &gain},
      {x});
}

at::Tensor Embedding(const at::Tensor& ids, Parameter& table,
                     at::ScalarType out_dtype) {
  return RunAsFunction(
      {.build = [](ProgramBuilder& b, const std::vector<Value>& in,
                   Weight w) { return tessera::Embedding(b, in[0], w); },
       .precision = PolicyFor(out_dtype, MasterDtype(table)),
       .parameter = &table},
      {ids});
}

at::Tensor Rope(const at::Tensor& qkv, const RopeTable& table,
                int64_t rotated_heads) {
  std::vector<at::Tensor> inputs = {qkv};
  if (table.token_positions.defined()) inputs.push_back(table.token_positions);
  return RunAsFunction(
      {.build =
           [&](ProgramBuilder& b, const std::vector<Value>& in, Weight) {
             const TensorType type = {table.cos.sizes().vec(), at::kFloat};
             RopeAngles angles = {
                 .cos = b.Constant("cos", type,
                                   [&](at::Device) { return table.cos; }),
                 .sin = b.Constant("sin", type,
                                   [&](at::Device) { return table.sin; }),
                 .layout = table.layout};
             if (in.size() > 1) angles.positions = in[1];
             return tessera::Rope(b, in[0], angles, rotated_heads);
           },
       .precision = PolicyFor(qkv.scalar_type(), qkv.scalar_type())},
      inputs);
}

at::Tensor SwiGlu(const at::Tensor& ab) {
  return RunAsFunction(
      {.build = [](ProgramBuilder& b, const std::vector<Value>& in,
                   Weight) { return tessera::SwiGlu(b, in[0]); },
       .precision = PolicyFor(ab.scalar_type(), ab.scalar_type())},
      {ab});
}

at::Tensor AddResidual(const at::Tensor& x, const at::Tensor& delta) {
  return RunAsFunction(
      {.build = [](ProgramBuilder& b, const std::vector<Value>& in,
                   Weight) { return tessera::AddResidual(b, in[0], in[1]); },
       .precision = PolicyFor(x.scalar_type(), x.scalar_type())},
      {x, delta});
}

at::Tensor CrossEntropySum(const at::Tensor& logits, const at::Tensor& targets,
                           const CrossEntropyOptions& options) {
  return RunAsFunction(
      {.build =
           [&](ProgramBuilder& b, const std::vector<Value>& in, Weight) {
             return tessera::CrossEntropySum(b, in[0], in[1], options);
           },
       .precision = PolicyFor(logits.scalar_type(), logits.scalar_type())},
      {logits, targets});
}

at::Tensor PlainCrossEntropySum(const at::Tensor& logits,
                                const at::Tensor& targets,
                                const CrossEntropyOptions& options) {
  const double cap = options.soft_cap;
  const at::Tensor x = logits.to(ArithmeticDtype(logits.scalar_type()));
  const at::Tensor y = cap == 0 ? x : at::tanh(x / cap) * cap;
  const at::Tensor cross_entropy =
      at::cross_entropy_loss(y, targets, /*weight=*/{}, at::Reduction::Sum,
                             kIgnoredTarget, options.objective.label_smoothing);
  const double z = options.objective.z_loss;
  if (z == 0) return cross_entropy;
  const at::Tensor squares = at::logsumexp(y, -1).square();
  return cross_entropy +
         z * squares.masked_fill(targets == kIgnoredTarget, 0).sum();
}

}  // namespace tessera::testing
