#include "trainers/generation/next_token.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "attention_backends/select_backend.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/device.h"
#include "framework/cuda/page_locked.h"
#include "framework/cuda/recorded_work.h"
#include "framework/program/rewrites/fuse_ops.h"
#include "framework/program/verify.h"
#include "trainers/plan/step_plan.h"

namespace tessera {
namespace {

NextTokenProgram Fused(NextTokenProgram next) {
  FusedProgram fused = FuseOps(std::move(next.program),
                               [](Fusion fusion, const OpNode&, const OpNode&) {
                                 return fusion == Fusion::kNextToken;
                               });
  next.program = std::move(fused.program);
  const auto renumber = [&](Value& value) {
    value = fused.renumbered[value.index];
  };
  renumber(next.ids);
  renumber(next.position);
  renumber(next.logits);
  for (Value& cache : next.caches) renumber(cache);
  return next;
}

}  // namespace

// A program and what runs it.
struct NextTokenModel::Runner {
  Runner(NextTokenProgram made, ParameterStore& parameters)
      : next(std::move(made)),
        schedule(ForwardSchedule(next.program)),
        lifetimes(PlanLifetimes(schedule)),
        executor(schedule, lifetimes, parameters),
        ids(OnHost(next.ids, parameters, at::kLong)),
        position(OnHost(next.position, parameters, at::kLong)),
        logits(OnHost(next.logits, parameters, at::kFloat)) {
    const at::Device device = parameters.options().device;
    device_ids = ids.to(device);
    device_position = position.to(device);
    device_logits = logits.to(device);
    executor.SetInput(next.ids, device_ids);
    executor.SetInput(next.position, device_position);
  }

  // Zeros, for copies of `value`.
  at::Tensor OnHost(Value value, const ParameterStore& parameters,
                    at::ScalarType dtype) const {
    return HostMemoryFor(parameters.options().device,
                         next.program.info(value).type.shape, dtype)
        .zero_();
  }

  // Takes the last `length` tokens of each text, padded with zeros. The logits
  // will be those after token `last` of a text.
  void SetTexts(const std::vector<std::vector<int64_t>>& texts, int64_t length,
                int64_t last) {
    int64_t* row = ids.data_ptr<int64_t>();
    for (const std::vector<int64_t>& text : texts) {
      std::fill(std::copy(text.end() - length, text.end(), row),
                row + ids.size(1), 0);
      row += ids.size(1);
    }
    position.fill_(last);
  }

  // Sets the logits. They become FP32 on the device: on the host LibTorch would
  // convert them with all threads, which wait for each other.
  absl::Status Run() {
    RETURN_IF_ERROR(work.Do([this] {
      device_ids.copy_(ids, /*non_blocking=*/true);
      device_position.copy_(position, /*non_blocking=*/true);
      executor.Run();
      device_logits.copy_(executor.Get(next.logits));
      logits.copy_(device_logits, /*non_blocking=*/true);
      return absl::OkStatus();
    }));
    Synchronize(device_ids.device());
    return absl::OkStatus();
  }

  const NextTokenProgram next;
  const Schedule schedule;
  const Lifetimes lifetimes;
  Executor executor;
  at::Tensor ids, position, logits;  // on the host
  at::Tensor device_ids, device_position, device_logits;
  RecordedWork work;
};

NextTokenModel::NextTokenModel(const RunPlan& plan, ParameterStore& parameters)
    : plan_(plan), parameters_(parameters) {}
NextTokenModel::~NextTokenModel() = default;

absl::StatusOr<NextTokenProgram> NextTokenModel::ProgramFor(int64_t length,
                                                            CacheUse use) {
  const ProgramTarget target = TargetOf(plan_);
  LmOptions options = {
      .shape = plan_.shape,
      .batch = batch_,
      .sequence = length,
      .backend = plan_.backend.backend,
      .attention = AttentionProblemOf(plan_.shape, batch_, length,
                                      /*needs_grad=*/false, target)};
  if (use == CacheUse::kExtend) {
    return BuildNextTokenProgram(options, target, use);
  }
  // AUTO's choice for training may compile kernels for each length.
  if (plan_.config.attention().backend() == AttentionConfig::AUTO ||
      !options.backend->Supports(options.attention).ok()) {
    ASSIGN_OR_RETURN(const BackendChoice choice,
                     SelectBackend(BackendRequest(), options.attention));
    options.backend = choice.backend;
  }
  return BuildNextTokenProgram(options, target, use);
}

absl::StatusOr<NextTokenModel::Runner*> NextTokenModel::RunnerFor(
    int64_t length, CacheUse use) {
  std::unique_ptr<Runner>& runner = runners_[{length, use}];
  if (runner != nullptr) return runner.get();
  ASSIGN_OR_RETURN(NextTokenProgram next, ProgramFor(length, use));
  auto made = std::make_unique<Runner>(Fused(std::move(next)), parameters_);
  RETURN_IF_ERROR(VerifyLifetimes(made->schedule, made->lifetimes).status());
  if constexpr (kCudaBuild) {
    if (use == CacheUse::kExtend && MayRecord(made->next.program)) {
      made->work.SetGraph(MakeCudaGraph(plan_.device.device));
    }
  }
  GrowCaches(length, made->next.program.info(made->next.caches[0]).type);
  for (size_t layer = 0; layer < caches_.size(); ++layer) {
    made->executor.SetInput(made->next.caches[layer],
                            caches_[layer].narrow(0, 0, length));
  }
  runner = std::move(made);
  return runner.get();
}

bool NextTokenModel::MayRecord(const Program& program) const {
  return plan_.device.is_cuda() &&
         plan_.config.execution().mode() != ExecutionConfig::EAGER &&
         NotCapturable(program).empty();
}

bool NextTokenModel::Extends(const Texts& texts) const {
  const auto extends = [](const std::vector<int64_t>& before,
                          const std::vector<int64_t>& text) {
    return text.size() == before.size() + 1 &&
           std::equal(before.begin(), before.end(), text.begin());
  };
  return static_cast<int64_t>(texts[0].size()) <= plan_.shape.context &&
         std::equal(cached_.begin(), cached_.end(), texts.begin(), texts.end(),
                    extends);
}

void NextTokenModel::GrowCaches(int64_t rows, const TensorType& type) {
  if (!caches_.empty() && caches_[0].size(0) >= rows) return;
  // Shorter programs hold the caches that were large enough for them.
  std::erase_if(runners_,
                [&](const auto& runner) { return runner.first.first < rows; });
  std::vector<at::Tensor> grown;
  for (int64_t layer = 0; layer < plan_.shape.layers; ++layer) {
    // Zeros, because what no token sees must still be finite.
    grown.push_back(at::zeros(
        type.shape, at::dtype(type.dtype).device(plan_.device.device)));
    if (caches_.empty()) continue;
    at::Tensor& cache = caches_[layer];
    grown.back().narrow(0, 0, cache.size(0)).copy_(cache);
    cache.reset();
  }
  caches_ = std::move(grown);
}

void NextTokenModel::Remember(const Texts& texts, bool extends) {
  if (!extends) {
    cached_ = texts;
    return;
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    cached_[i].push_back(texts[i].back());
  }
}

absl::StatusOr<std::vector<float>> NextTokenModel::LogitsAfter(
    const Texts& texts) {
  if (const auto batch = static_cast<int64_t>(texts.size()); batch != batch_) {
    Forget();
    batch_ = batch;
  }
  const int64_t context = plan_.shape.context;
  const auto tokens = static_cast<int64_t>(texts[0].size());
  const bool extends = Extends(texts);
  const int64_t length = std::min(tokens, context);
  const int64_t padded = extends ? CacheRows(length, context, plan_.device)
                                 : PaddedLength(length, context);
  std::vector<float> result;
  const absl::Status run = StatusFromTorchOr([&]() -> absl::Status {
    ASSIGN_OR_RETURN(
        Runner* const runner,
        RunnerFor(padded, extends ? CacheUse::kExtend : CacheUse::kFill));
    runner->SetTexts(texts, extends ? 1 : length, length - 1);
    RETURN_IF_ERROR(runner->Run());
    const float* const data = runner->logits.const_data_ptr<float>();
    result.assign(data, data + runner->logits.numel());
    return absl::OkStatus();
  });
  if (!run.ok()) {
    Forget();
    return run;
  }
  if (length == tokens) {
    Remember(texts, extends);
  } else {
    cached_.clear();
  }
  return result;
}

void NextTokenModel::Forget() {
  runners_.clear();
  caches_.clear();
  cached_.clear();
}

}  // namespace tessera
