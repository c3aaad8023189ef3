#include "trainers/generation/next_token.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "attention_backends/select_backend.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/program/verify.h"

namespace tessera {
namespace {

// Sequence lengths are padded to a multiple of this (up to the context),
// because attention backends compile, tune and reject per length.
constexpr int64_t kLengthMultiple = 64;

int64_t PaddedLength(int64_t tokens, int64_t context) {
  return std::min(
      (tokens + kLengthMultiple - 1) / kLengthMultiple * kLengthMultiple,
      context);
}

}  // namespace

// The program for one padded length.
struct NextTokenModel::Runner {
  Runner(NextTokenProgram made, ParameterStore& parameters)
      : next(std::move(made)),
        schedule(ForwardSchedule(next.program)),
        lifetimes(PlanLifetimes(schedule)),
        executor(schedule, lifetimes, parameters) {}

  const NextTokenProgram next;
  const Schedule schedule;
  const Lifetimes lifetimes;
  Executor executor;
};

NextTokenModel::NextTokenModel(const RunPlan& plan, ParameterStore& parameters)
    : plan_(plan), parameters_(parameters) {}
NextTokenModel::~NextTokenModel() = default;

absl::StatusOr<NextTokenModel::Runner*> NextTokenModel::RunnerFor(
    int64_t length) {
  std::unique_ptr<Runner>& runner = runners_[length];
  if (runner != nullptr) return runner.get();
  const ProgramTarget target = TargetOf(plan_);
  LmOptions options = {
      .shape = plan_.shape,
      .batch = 1,
      .sequence = length,
      .backend = plan_.backend.backend,
      .attention = AttentionProblemOf(plan_.shape, 1, length,
                                      /*needs_grad=*/false, target)};
  // AUTO's choice for training may compile kernels for each length.
  if (plan_.config.attention().backend() == AttentionConfig::AUTO ||
      !options.backend->Supports(options.attention).ok()) {
    ASSIGN_OR_RETURN(const BackendChoice choice,
                     SelectBackend(BackendRequest(), options.attention));
    options.backend = choice.backend;
  }
  ASSIGN_OR_RETURN(NextTokenProgram next,
                   BuildNextTokenProgram(options, target));
  std::unique_ptr<Runner> made;
  RETURN_IF_ERROR(StatusFromTorch(
      [&] { made = std::make_unique<Runner>(std::move(next), parameters_); }));
  RETURN_IF_ERROR(VerifyLifetimes(made->schedule, made->lifetimes).status());
  runner = std::move(made);
  return runner.get();
}

absl::StatusOr<std::vector<float>> NextTokenModel::LogitsAfter(
    absl::Span<const int64_t> tokens) {
  const int64_t context = plan_.shape.context;
  const int64_t length = std::min<int64_t>(tokens.size(), context);
  const int64_t padded = PaddedLength(length, context);
  ASSIGN_OR_RETURN(Runner* const runner, RunnerFor(padded));
  std::vector<float> result;
  RETURN_IF_ERROR(StatusFromTorch([&] {
    at::Tensor ids = at::zeros({1, padded}, at::kLong);
    std::copy(tokens.end() - length, tokens.end(), ids.data_ptr<int64_t>());
    const at::Device device = plan_.device.device;
    runner->executor.SetInput(runner->next.ids, ids.to(device));
    runner->executor.SetInput(runner->next.position,
                              at::full({1}, length - 1, at::kLong).to(device));
    runner->executor.Run();
    const at::Tensor logits =
        runner->executor.Get(runner->next.logits).to(at::kCPU, at::kFloat);
    const float* const data = logits.const_data_ptr<float>();
    result.assign(data, data + logits.numel());
  }));
  return result;
}

}  // namespace tessera
