#include "trainers/run/session.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <optional>
#include <string>
#include <utility>

#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/data/data_config.h"
#include "framework/observe/step_record.h"
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

// The text of rank 0.
absl::StatusOr<std::string> BroadcastText(std::string text, c10::Device device,
                                          ProcessGroup* group) {
  const at::Tensor size = at::full({1}, static_cast<int64_t>(text.size()),
                                   at::device(device).dtype(at::kLong));
  RETURN_IF_ERROR(group->Broadcast(size, /*root=*/0));
  text.resize(size.item<int64_t>());
  const at::Tensor bytes =
      at::from_blob(text.data(), {static_cast<int64_t>(text.size())}, at::kByte)
          .to(device);
  RETURN_IF_ERROR(group->Broadcast(bytes, /*root=*/0));
  const at::Tensor received = bytes.cpu();
  return std::string(static_cast<const char*>(received.const_data_ptr()),
                     received.nbytes());
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

absl::StatusOr<std::unique_ptr<ProcessGroup>> ConnectRanks(
    const RunPlan& plan, GroupTimeouts timeouts) {
  timeouts.count_whole_steps |=
      plan.device.is_cuda() && !plan.config.observe().watch_communications();
  return ProcessGroup::Create(plan.world, plan.device.device, timeouts);
}

absl::StatusOr<std::unique_ptr<Session>> Session::Create(
    const RunConfig& config, const SessionOptions& options) {
  ASSIGN_OR_RETURN(const WorldInfo world, WorldFromEnvironment());
  ASSIGN_OR_RETURN(RunPlan plan, PlanRun(config, world));
  return Create(std::move(plan), options);
}

absl::StatusOr<std::unique_ptr<Session>> Session::Create(
    RunPlan plan, const SessionOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group,
                   ConnectRanks(plan, options.timeouts));
  return Create(std::move(plan), std::move(group), options);
}

absl::StatusOr<std::unique_ptr<Session>> Session::Create(
    RunPlan plan, std::unique_ptr<ProcessGroup> group,
    const SessionOptions& options) {
  std::unique_ptr<Session> session(
      new Session(std::move(plan), options.phases));
  const RunPlan& made = session->plan_;
  session->group_ = std::move(group);
  if (made.layout.sharding().replicas > 1) {
    ASSIGN_OR_RETURN(
        session->shards_,
        session->group_->Split(MeshAxisName(MeshAxis::kShard),
                               made.layout.RanksAlong(MeshAxis::kShard)));
    ASSIGN_OR_RETURN(
        session->replicas_,
        session->group_->Split(MeshAxisName(MeshAxis::kReplica),
                               made.layout.RanksAlong(MeshAxis::kReplica)));
  }
  RETURN_IF_ERROR(session->group_->AgreeOn(
      "the config's hash", std::stoull(ConfigHash(made.config), nullptr, 16)));
  RETURN_IF_ERROR(session->group_->AgreeOn("the order of the step's sums",
                                           CollectiveOrder(made.step->train)));
  RETURN_IF_ERROR(session->group_->AgreeOn(
      "whether the ranks that divide the state are on one machine",
      made.step->sharding.copy_engines));
  RETURN_IF_ERROR(session->OpenData(options));
  RETURN_IF_ERROR(session->group_->AgreeOn("the training data's fingerprint",
                                           session->data_.fingerprint));
  // Ranks with more of it would wait for the others.
  RETURN_IF_ERROR(
      session->group_->AgreeOn("the validation data's fingerprint",
                               session->data_.validation_fingerprint));
  RETURN_IF_ERROR(ExplainOutOfMemory(
      session->plan_, StatusFromTorchOr([&]() -> absl::Status {
        ConfigureLibTorch(session->plan_);
        RETURN_IF_ERROR(session->ChooseAlgorithms(options));
        const auto build = [&] { return session->BuildStep(); };
        return made.step->sharding.copy_engines
                   ? session->shards().UseCopyEngines(build)
                   : build();
      })));
  return session;
}

absl::Status Session::FinishGroup() {
  step_->DropGraphs();  // they hold operations of the group
  return group_->Finish();
}

absl::Status Session::FreeStep() {
  RETURN_IF_ERROR(step_->Flush());
  step_ = nullptr;
  return absl::OkStatus();
}

absl::Status Session::OpenData(const SessionOptions& options) {
  const TrainingConfig& training = plan_.config.training();
  ASSIGN_OR_RETURN(data_, OpenDataset(plan_, options.progress));
  if (plan_.attention.documents) {
    plan_.flops_per_token =
        ModelFlopsPerToken(*plan_.step, [this](int64_t latest) {
          return data_.train->CausalPairsPerRow(latest);
        });
  }
  const BatchRequest share{.global_batch = training.batch_size(),
                           .rank = plan_.layout.data_rank(),
                           .world_size = plan_.layout.data_ranks()};
  const auto loader = [&](const DataSource* source) {
    return std::make_unique<BatchLoader>(
        source, share, training.micro_batches(), plan_.device.device);
  };
  train_loader_ = loader(data_.train.get());
  if (const DataSource* const held_out = data_.validation.get()) {
    validation_.push_back({kValidationName, held_out, loader(held_out)});
  }
  for (const Dataset::ValidationSet& set : data_.validation_sets) {
    validation_.push_back(
        {set.name, set.source.get(), loader(set.source.get())});
  }
  return absl::OkStatus();
}

absl::Status Session::ChooseAlgorithms(const SessionOptions& options) {
  const auto choose = [&](const nlohmann::json& recorded) {
    // Evaluation computes products of the same kinds.
    ChooseProducts(ProductsOf(plan_.step->loss.program),
                   {.device = plan_.device.device,
                    .tune = plan_.config.execution().tune_products(),
                    .recorded = recorded},
                   plan_.products.get());
  };
  if (group_->rank() == 0) choose(options.products);
  if (group_->world_size() == 1) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string record,
                   BroadcastText(plan_.products->record.dump(),
                                 plan_.device.device, group_.get()));
  if (group_->rank() != 0) choose(nlohmann::json::parse(record));
  return absl::OkStatus();
}

absl::Status Session::BuildStep() {
  const OptimizerConfig& config = plan_.config.optimizer();
  learning_rates_ = LearningRateScheduleOf(
      config.schedule(), config.adamw().lr(), plan_.config.training().steps());
  ASSIGN_OR_RETURN(parameters_, MakeParameters(plan_));
  RETURN_IF_ERROR(
      shards().ReserveForSums(LargestSection(parameters_->sections()),
                              parameters_->options().gradient));
  ASSIGN_OR_RETURN(
      optimizer_,
      Optimizer::Create(AdamWOptionsOf(config.adamw()),
                        ParameterGroupsOf(config.adamw()),
                        MuonOptionsOf(config), *parameters_, plan_.precision));
  if (config.has_ema()) {
    RETURN_IF_ERROR(optimizer_->StartEma(EmaOptionsOf(config.ema())));
  }
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
  return std::make_unique<TrainStep>(StepParts{
      .plan = plan_.step.get(),
      .parameters = parameters_.get(),
      .optimizer = optimizer_.get(),
      .group = group_.get(),
      .shards = &shards(),
      .replicas = replicas_.get(),
      .scaler = scaler_.get(),
      .clip_norm = config.has_clip_norm() ? std::optional(config.clip_norm())
                                          : std::nullopt,
      .phases = phases});
}

}  // namespace tessera
