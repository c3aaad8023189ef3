#include "trainers/run/session.h"

#include <ATen/Context.h>

#include <optional>
#include <string>
#include <utility>

#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/data/data_config.h"
#include "framework/optim/optimizer_config.h"
#include "framework/program/verify.h"
#include "trainers/config/config_loader.h"

namespace tessera {
namespace {

// Sets process-wide switches; call it once, before the first product.
void ConfigureLibTorch(const RunPlan& plan) {
  plan.precision.ApplyToLibTorch();
  at::manual_seed(static_cast<uint64_t>(plan.config.training().seed()));
  at::globalContext().setDeterministicAlgorithms(
      plan.config.training().deterministic(), /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

LossScalerOptions ScalerOptions(const LossScalerConfig& config) {
  return {.initial_scale = config.initial_scale(),
          .growth_factor = config.growth_factor(),
          .backoff_factor = config.backoff_factor(),
          .growth_interval_steps = config.growth_interval_steps()};
}

}  // namespace

absl::StatusOr<Dataset> OpenDataset(const RunPlan& plan,
                                    const ProgressSink& progress) {
  return CreateDataset(
      plan.config.data(),
      {.context_length = plan.shape.context,
       .vocab_size = plan.shape.vocab,
       .seed = static_cast<uint64_t>(plan.config.training().seed()),
       .progress = progress});
}

absl::StatusOr<std::unique_ptr<Session>> Session::Create(
    const RunConfig& config, const SessionOptions& options) {
  ASSIGN_OR_RETURN(const WorldInfo world, WorldFromEnvironment());
  ASSIGN_OR_RETURN(RunPlan plan, PlanRun(config, world));
  return Create(std::move(plan), options);
}

absl::StatusOr<std::unique_ptr<Session>> Session::Create(
    RunPlan plan, const SessionOptions& options) {
  std::unique_ptr<Session> session(
      new Session(std::move(plan), options.phases));
  const RunPlan& made = session->plan_;
  ASSIGN_OR_RETURN(session->group_,
                   ProcessGroup::Create(made.world, made.device.device));
  RETURN_IF_ERROR(session->group_->AgreeOn(
      "the config's hash", std::stoull(ConfigHash(made.config), nullptr, 16)));
  RETURN_IF_ERROR(session->group_->AgreeOn("the order of the step's sums",
                                           CollectiveOrder(made.step->train)));
  RETURN_IF_ERROR(session->OpenData(options));
  RETURN_IF_ERROR(session->group_->AgreeOn("the training data's fingerprint",
                                           session->data_.fingerprint));
  RETURN_IF_ERROR(ExplainOutOfMemory(session->plan_, StatusFromTorchOr([&] {
                                       ConfigureLibTorch(session->plan_);
                                       session->ChooseAlgorithms(options);
                                       return session->BuildStep();
                                     })));
  return session;
}

absl::Status Session::OpenData(const SessionOptions& options) {
  const TrainingConfig& training = plan_.config.training();
  ASSIGN_OR_RETURN(data_, OpenDataset(plan_, options.progress));
  const BatchRequest share{.global_batch = training.batch_size(),
                           .rank = plan_.world.rank,
                           .world_size = plan_.world.world_size};
  train_loader_ = std::make_unique<BatchLoader>(
      data_.train.get(), share, training.micro_batches(), plan_.device.device);
  if (data_.validation != nullptr) {
    validation_loader_ = std::make_unique<BatchLoader>(
        data_.validation.get(), share, training.micro_batches(),
        plan_.device.device);
  }
  return absl::OkStatus();
}

void Session::ChooseAlgorithms(const SessionOptions& options) {
  // Ranks that chose on their own would round differently.
  const bool tune =
      plan_.config.execution().tune_products() && plan_.world.world_size == 1;
  // Evaluation computes products of the same kinds.
  ChooseProducts(ProductsOf(plan_.step->loss.program),
                 {.device = plan_.device.device,
                  .tune = tune,
                  .recorded = options.products},
                 plan_.products.get());
}

absl::Status Session::BuildStep() {
  const OptimizerConfig& config = plan_.config.optimizer();
  ASSIGN_OR_RETURN(learning_rates_, CreateLearningRateSchedule(
                                        config.schedule(), config.adamw().lr(),
                                        plan_.config.training().steps()));
  ASSIGN_OR_RETURN(parameters_, MakeParameters(plan_));
  ASSIGN_OR_RETURN(optimizer_, AdamW::Create(AdamWOptionsOf(config.adamw()),
                                             ParameterGroupsOf(config.adamw()),
                                             *parameters_, plan_.precision));
  if (plan_.precision.scales_loss()) {
    scaler_ = std::make_unique<LossScaler>(
        ScalerOptions(plan_.config.precision().loss_scaler()),
        plan_.device.device);
  }
  step_ = MakeStep(phases_);
  return absl::OkStatus();
}

std::unique_ptr<TrainStep> Session::MakeStep(PhaseObserver* phases) const {
  const OptimizerConfig& config = plan_.config.optimizer();
  return std::make_unique<TrainStep>(TrainStep::Parts{
      .plan = plan_.step.get(),
      .parameters = parameters_.get(),
      .optimizer = optimizer_.get(),
      .group = group_.get(),
      .scaler = scaler_.get(),
      .clip_norm = config.has_clip_norm() ? std::optional(config.clip_norm())
                                          : std::nullopt,
      .phases = phases});
}

}  // namespace tessera
