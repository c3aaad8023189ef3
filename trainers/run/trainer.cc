#include "trainers/run/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "framework/base/check.h"
#include "framework/base/exit_code.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "framework/base/text_proto.h"
#include "framework/base/torch_status.h"
#include "framework/checkpoint/checkpoint_config.h"
#include "framework/checkpoint/checkpoint_directory.h"
#include "framework/cuda/device_spec.h"
#include "framework/observe/observe_config.h"
#include "framework/optim/gradient_norm.h"
#include "framework/program/memory.h"
#include "trainers/build_info.h"
#include "trainers/config/config_loader.h"
#include "trainers/generation/text_generation.h"
#include "trainers/run/evaluation.h"
#include "trainers/run/run_identity.h"

namespace tessera {
namespace {

// Steps of a process that the profiler's range "warmup" covers: libraries
// load, the allocator fills.
constexpr int64_t kWarmupSteps = 5;
// How often several ranks ask each other whether one shall stop. Asking makes
// the host wait for its device.
constexpr absl::Duration kAgreement = absl::Seconds(1);
constexpr double kGiB = 1073741824.0;

std::optional<double> PeakTflops(const RunPlan& plan) {
  const ObserveConfig& observe = plan.config.observe();
  if (observe.has_peak_tflops()) return observe.peak_tflops();
  const DeviceSpec* const spec = FindDeviceSpec(plan.device.name);
  if (spec == nullptr) return std::nullopt;
  return spec->tflops(ProductKindOf(plan.precision));
}

nlohmann::ordered_json DeviceJson(const RunPlan& plan) {
  return {{"name", plan.device.name},
          {"memory_bytes", plan.device.total_bytes},
          {"world_size", plan.world.world_size}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(
    std::unique_ptr<Session> session, RunFolder folder, PhaseObserver* phases) {
  std::unique_ptr<Trainer> trainer(
      new Trainer(std::move(session), std::move(folder), phases));
  RETURN_IF_ERROR(trainer->Resume());
  RETURN_IF_ERROR(trainer->OpenOutputs());
  return trainer;
}

Trainer::Trainer(std::unique_ptr<Session> session, RunFolder folder,
                 PhaseObserver* phases)
    : session_(std::move(session)),
      folder_(std::move(folder)),
      phases_(phases) {}

absl::Status Trainer::Resume() {
  if (folder_.resume_from != nullptr) {
    const Checkpoint& checkpoint = *folder_.resume_from;
    RETURN_IF_ERROR(CheckSameStep(checkpoint));
    RETURN_IF_ERROR(
        CheckSameModel(checkpoint, session_->plan().config.model()));
    RETURN_IF_ERROR(CheckSameData(checkpoint, *session_));
    RETURN_IF_ERROR(Restore(checkpoint, session_->state()));
    step_ = first_step_ = saved_step_ = checkpoint.step();
    ASSIGN_OR_RETURN(samples_, SamplesOf(checkpoint));
    const std::string changes =
        ConfigChanges(checkpoint, session_->plan().config);
    if (!changes.empty() && is_writer()) {
      LogInfo(absl::StrCat("resuming ", checkpoint.folder(),
                           " with another config:\n", changes));
    }
    resumed_from_ = newest_checkpoint_ = checkpoint.folder();
    folder_.resume_from.reset();  // it maps files as large as the model
  } else if (session_->plan().config.checkpoint().has_init_from()) {
    TESSERA_CHECK(folder_.init_from != nullptr);
    RETURN_IF_ERROR(StartFrom(*folder_.init_from));
    folder_.init_from.reset();
  }
  session_->step().SetNextStep(step_);
  RETURN_IF_ERROR(session_->group().AgreeOn("the step to go on from", step_));
  return StatusFromTorch([&] {
    // Ranks read or made their weights each for themselves.
    ThrowIfError(
        session_->group().Broadcast(session_->state().parameters->master(), 0));
    session_->state().parameters->RefreshShadow();
  });
}

absl::Status Trainer::StartFrom(const Checkpoint& checkpoint) {
  absl::Status status =
      CheckSameHeads(checkpoint, session_->plan().config.model());
  if (status.ok()) {
    status = RestoreParameters(checkpoint, session_->state().parameters);
  }
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat("checkpoint.init_from: ",
                                                    status.message()));
  }
  started_from_ = {{"step", 0},
                   {"checkpoint", checkpoint.folder()},
                   {"checkpoint_step", checkpoint.step()}};
  if (is_writer()) {
    LogInfo(absl::StrCat("starting from the weights of ", checkpoint.folder()));
  }
  return absl::OkStatus();
}

absl::Status Trainer::OpenOutputs() {
  if (!is_writer()) return absl::OkStatus();
  const RunPlan& plan = session_->plan();
  const std::string config = PrintWithDefaults(plan.config);
  RETURN_IF_ERROR(CreateRunFolder(&folder_));
  RETURN_IF_ERROR(RemoveStaleTemporaries(folder_.checkpoints()).status());
  RETURN_IF_ERROR(RemoveTemporarySiblings(folder_.config()));
  const RunHeader header{.config_text = config,
                         .config_hash = ConfigHash(plan.config),
                         .build = BuildInfo(),
                         .device = DeviceJson(plan)};
  const bool was_begun = FileExists(folder_.log());
  if (was_begun) {
    ASSIGN_OR_RETURN(
        log_, RunLog::Resume(folder_.log(), header,
                             {.step = step_, .checkpoint = resumed_from_}));
  } else {
    ASSIGN_OR_RETURN(log_, RunLog::Create(folder_.log(), header));
  }
  if (!started_from_.is_null()) {
    RETURN_IF_ERROR(log_->Log("init", started_from_));
  }
  // After the log, which says that the folder is a run's (run_folder.h).
  if (step_ < training().steps()) {  // else the run is as it was
    RETURN_IF_ERROR(WriteFileAtomically(folder_.config(), config));
  }
  if (plan.config.observe().tensorboard()) {
    ASSIGN_OR_RETURN(tensorboard_, TensorboardWriter::Create(folder_.path));
    if (was_begun) {
      RETURN_IF_ERROR(tensorboard_->SupersedeFrom(step_ + 1));
    }
  }
  WarnOfShortData(*session_);
  const bool bar = WantsProgressBar(plan.config.observe().progress_bar());
  console_ = std::make_unique<Console>(stdout, bar ? stderr : nullptr);
  return absl::OkStatus();
}

absl::Status Trainer::Run() {
  resumed_at_ = last_agreement_ = timed_since_ = saved_at_ = absl::Now();
  last_agreed_step_ = step_;
  if (step_ >= training().steps() && is_writer()) {
    LogInfo(absl::StrCat("nothing to train: ", resumed_from_, " is at step ",
                         step_, " of ", training().steps(),
                         "; raise training.steps"));
  }
  if (console_ != nullptr) console_->Start(Describe(), resumed_at_);
  std::optional<PhaseScope> span;
  span.emplace(phases_, "warmup");
  while (step_ < training().steps()) {
    if (step_ == first_step_ + kWarmupSteps) {
      span.reset();
      span.emplace(phases_, "measurement");
    }
    RETURN_IF_ERROR(DoStep());
    RETURN_IF_ERROR(AfterStep());
    ASSIGN_OR_RETURN(const int signo, StopSignalOfAnyRank());
    if (signo != 0) {
      RETURN_IF_ERROR(SaveCheckpoint());
      RETURN_IF_ERROR(session_->group().Finish());
      return SignalStatus(signo);
    }
    if (save_is_due_) RETURN_IF_ERROR(SaveByTheClock());
  }
  span.reset();
  RETURN_IF_ERROR(SaveCheckpoint());
  // First: the others would wait for a sample that only rank 0 prints.
  RETURN_IF_ERROR(session_->group().Finish());
  return PrintSample();
}

absl::Status Trainer::DoStep() {
  PhaseScope scope(phases_, absl::StrCat("step_", step_ + 1));
  const absl::StatusOr<StepBatch> batch =
      session_->train_loader().Load(samples_);
  if (absl::IsDataLoss(batch.status())) return SaveAfter(batch.status());
  RETURN_IF_ERROR(batch.status());
  RETURN_IF_ERROR(ExplainOutOfMemory(
      session_->plan(),
      session_->step().Run(*batch, session_->LearningRate(step_))));
  if (session_->plan().config.observe().saved_bytes() && step_ == first_step_) {
    RETURN_IF_ERROR(LogKeptBytes());
  }
  ++step_;
  samples_ += training().batch_size();
  ++timed_steps_;
  if (console_ != nullptr) console_->Progress(step_, absl::Now());
  return absl::OkStatus();
}

absl::Status Trainer::LogKeptBytes() {
  const StepPlan& plan = *session_->plan().step;
  const SavedBytesRecord record{
      .step = step_ + 1, .bytes = KeptBytes(plan.train, plan.train_lifetimes)};
  if (const int64_t held = session_->step().kept_bytes();
      held != record.bytes) {
    return absl::InternalError(absl::StrCat(
        "the step kept ", held, " bytes for its backward pass, not ",
        record.bytes, " as planned"));
  }
  if (!is_writer()) return absl::OkStatus();
  console_->SavedBytes(record);
  return log_->Log("saved", {{"step", record.step}, {"bytes", record.bytes}});
}

absl::Status Trainer::AfterStep() {
  const RunConfig& config = session_->plan().config;
  const bool last = step_ == training().steps();
  const bool logs = last || Due(config.observe().log_every_steps());
  const bool evaluates = last || (training().has_eval_every_steps() &&
                                  Due(training().eval_every_steps()));
  const bool saves = last || (config.checkpoint().has_every_steps() &&
                              Due(config.checkpoint().every_steps()));
  // The first step's time would hide that of the others.
  const bool starts_up = step_ == first_step_ + 1 && !logs;
  if (!logs && !evaluates && !saves && !starts_up) return absl::OkStatus();
  // What the steps launched belongs to their time.
  Synchronize(session_->plan().device.device);
  training_time_ += absl::Now() - timed_since_;
  if (starts_up) RestartTiming();
  if (logs) RETURN_IF_ERROR(LogStep());
  if (evaluates) RETURN_IF_ERROR(EvaluateNow());
  if (saves) RETURN_IF_ERROR(SaveCheckpoint());
  timed_since_ = absl::Now();
  return absl::OkStatus();
}

absl::Status Trainer::LogStep() {
  RETURN_IF_ERROR(CheckFinite());
  const RunPlan& plan = session_->plan();
  StepRecord record{.step = step_};
  RETURN_IF_ERROR(StatusFromTorch([&] {
    record.loss = session_->step().metrics().loss.item<double>();
    record.grad_norm = session_->step().metrics().grad_norm.item<double>();
    if (session_->scaler() != nullptr) {
      record.loss_scale = session_->scaler()->scale().item<double>();
    }
  }));
  const double seconds = absl::ToDoubleSeconds(training_time_) / timed_steps_;
  record.lr = session_->LearningRate(step_ - 1);
  record.step_ms = seconds * 1e3;
  record.tokens_per_s = plan.tokens_per_step() / seconds;
  record.tflops = record.tokens_per_s * plan.flops_per_token * 1e-12 /
                  plan.world.world_size;
  if (const std::optional<double> peak = PeakTflops(plan); peak.has_value()) {
    record.mfu = record.tflops / *peak;
  }
  if (plan.device.is_cuda()) {
    record.peak_gib = CurrentMemory(plan.device.device).peak_allocated / kGiB;
  }
  RestartTiming();
  if (!is_writer()) return absl::OkStatus();
  console_->Step(record);
  return Write(record);
}

void Trainer::RestartTiming() {
  training_time_ = absl::ZeroDuration();
  timed_steps_ = 0;
}

absl::Status Trainer::EvaluateNow() {
  const BatchLoader* loader = session_->validation_loader();
  if (loader == nullptr || training().eval_batches() == 0) {
    return absl::OkStatus();
  }
  const int64_t windows =
      std::min(session_->data().validation->windows(),
               int64_t{training().eval_batches()} * training().batch_size());
  const absl::StatusOr<EvaluationResult> result =
      Evaluate(session_->step(), *loader, session_->group(), windows);
  if (absl::IsDataLoss(result.status())) return SaveAfter(result.status());
  RETURN_IF_ERROR(result.status());
  if (!is_writer()) return absl::OkStatus();
  const EvalRecord record{.step = step_,
                          .loss = result->loss,
                          .unigram_entropy = session_->data().unigram_entropy};
  console_->Eval(record);
  return Write(record);
}

template <typename Record>
absl::Status Trainer::Write(const Record& record) {
  absl::Status status;
  if (tensorboard_ != nullptr) status = tensorboard_->Write(record);
  if (status.ok()) status = log_->Log(record);
  return status.ok() ? status : SaveAfter(status);
}

absl::Status Trainer::SaveCheckpoint() {
  if (saved_step_ == step_) return absl::OkStatus();
  RETURN_IF_ERROR(CheckFinite());
  saved_step_ = step_;
  if (is_writer()) {
    if (const absl::Status status = SaveInRunFolder(); !status.ok()) {
      const absl::Status in_place = log_->CheckInPlace();
      return in_place.ok() ? status : SaveAfter(in_place);
    }
  }
  saved_at_ = absl::Now();
  return session_->group().Barrier();
}

absl::Status Trainer::SaveInRunFolder() {
  // A folder that is gone must not come back with checkpoints and no log.
  RETURN_IF_ERROR(log_->CheckInPlace());
  RETURN_IF_ERROR(WriteCheckpoint(folder_.checkpoints()));
  const CheckpointConfig& keep = session_->plan().config.checkpoint();
  RetentionPolicy policy{.keep_last = keep.keep_last()};
  if (keep.has_keep_every_steps()) {
    policy.keep_every_steps = keep.keep_every_steps();
  }
  ASSIGN_OR_RETURN(const PrunedCheckpoints pruned,
                   PruneCheckpoints(folder_.checkpoints(), policy));
  for (const std::string& warning : pruned.warnings) LogWarning(warning);
  return absl::OkStatus();
}

absl::Status Trainer::WriteCheckpoint(const std::string& directory) {
  const RunPlan& plan = session_->plan();
  ASSIGN_OR_RETURN(std::unique_ptr<CheckpointWriter> writer,
                   CheckpointWriter::Begin(directory, step_));
  RETURN_IF_ERROR(AddTensors(session_->state(), writer.get()));
  nlohmann::json state = ExportState(session_->state());
  state["step"] = step_;
  state["samples"] = samples_;
  state["world_size"] = plan.world.world_size;
  AddDataIdentity(*session_, &state);
  state["config_hash"] = ConfigHash(plan.config);
  state["build"] = BuildInfo();
  if (const Tokenizer* tokenizer = session_->data().tokenizer.get()) {
    RETURN_IF_ERROR(
        writer->AddText(kTokenizerFile, TokenizerToJson(*tokenizer).dump(2)));
  }
  ASSIGN_OR_RETURN(newest_checkpoint_,
                   writer->Commit(state, PrintWithDefaults(plan.config)));
  return absl::OkStatus();
}

absl::Status Trainer::SaveAfter(const absl::Status& error) {
  if (!is_writer()) return error;
  // Another run may have the folder's name by now, or its removal may not be
  // over.
  std::string folder = folder_.path;
  const bool in_place = log_->CheckInPlace().ok();
  std::string advice = ", from where the run resumes";
  if (!in_place) {
    while (absl::EndsWith(folder, "/")) folder.pop_back();
    absl::StrAppend(
        &folder, ".rescued-",
        absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone()));
    advice =
        absl::StrCat("; resume with --resume=", folder, " and a new --out");
  }
  // The weights belong to step_ only if every step changed them. Unlike
  // CheckFinite(), this does not need the other ranks.
  std::optional<int64_t> bad;
  absl::Status saved =
      StatusFromTorch([&] { bad = session_->step().first_bad_step(); });
  if (saved.ok() && bad.has_value()) {
    saved = absl::AbortedError(absl::StrCat(
        "step ", *bad + 1, " gave a loss or gradient that is not finite"));
  }
  const bool there = in_place && saved_step_ == step_;
  if (saved.ok() && !there) saved = WriteCheckpoint(folder + "/checkpoints");
  return absl::Status(
      error.code(),
      saved.ok() ? absl::StrCat(error.message(), ". Step ", step_,
                                " is saved in ", newest_checkpoint_, advice)
                 : absl::StrCat(error.message(), ". Step ", step_,
                                " is not saved: ", saved.message()));
}

bool Trainer::ClockAsksToSave() const {
  return is_writer() && absl::Now() - saved_at_ >=
                            SaveInterval(session_->plan().config.checkpoint());
}

absl::Status Trainer::SaveByTheClock() {
  Synchronize(session_->plan().device.device);
  training_time_ += absl::Now() - timed_since_;
  RETURN_IF_ERROR(SaveCheckpoint());
  timed_since_ = absl::Now();
  return absl::OkStatus();
}

absl::Status Trainer::PrintSample() {
  const Tokenizer* tokenizer = session_->data().tokenizer.get();
  const int64_t tokens = training().sample_tokens_at_end();
  if (!is_writer() || tokens == 0) return absl::OkStatus();
  const SamplingOptions options{
      .temperature = 0.8,
      .top_p = 0.95,
      .seed = static_cast<uint64_t>(training().seed()),
      .max_tokens = tokens};
  if (tokenizer == nullptr) {
    absl::Status status = PrintSampleOfTokens(options);
    if (!absl::IsInvalidArgument(status)) return status;
    // The prompt is wrong, but training is done and saved.
    LogWarning(absl::StrCat("no sample: the data has no tokenizer, and ",
                            status.message()));
    return absl::OkStatus();
  }
  NextTokenModel model(session_->plan(), *session_->state().parameters);
  ASSIGN_OR_RETURN(
      const std::string text,
      SampleText(model, *tokenizer, training().sample_prompt(), options));
  console_->Sample("sample", text);
  return absl::OkStatus();
}

absl::Status Trainer::PrintSampleOfTokens(const SamplingOptions& options) {
  ASSIGN_OR_RETURN(
      std::vector<int64_t> prompt,
      ParseTokenIds(training().sample_prompt(), "training.sample_prompt"));
  if (prompt.empty()) {  // some token that the model has seen
    Batch batch;
    RETURN_IF_ERROR(session_->data().train->Fill({}, &batch));
    prompt.push_back(batch.ids[0]);
  }
  NextTokenModel model(session_->plan(), *session_->state().parameters);
  ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                   SampleTokens(model, std::move(prompt), options));
  console_->Sample("sample, token ids", absl::StrJoin(ids, ","));
  return absl::OkStatus();
}

absl::StatusOr<int> Trainer::StopSignalOfAnyRank() {
  const int signo = stop_.received();
  const bool clock_asks = ClockAsksToSave();
  save_is_due_ = session_->plan().world.world_size == 1 && clock_asks;
  if (session_->plan().world.world_size == 1) return signo;
  if (step_ < next_agreement_) return 0;
  const absl::Time now = absl::Now();
  const double seconds_per_step =
      absl::ToDoubleSeconds(now - last_agreement_) /
      static_cast<double>(step_ - last_agreed_step_);
  // How many ranks received each of kStopSignals, seconds_per_step, and how
  // many clocks ask to save.
  std::vector<double> mine;
  for (const int stop : kStopSignals) mine.push_back(signo == stop ? 1 : 0);
  mine.push_back(seconds_per_step);
  mine.push_back(clock_asks ? 1 : 0);
  at::Tensor sums;
  RETURN_IF_ERROR(StatusFromTorch([&] {
    sums = at::tensor(mine, at::kDouble).to(session_->plan().device.device);
    ThrowIfError(session_->group().AllReduceSum(sums));
    sums = sums.cpu();
  }));
  const double* const sum = sums.const_data_ptr<double>();
  // The sums are the same on every rank, and so is the step of the next.
  const double steps = absl::ToDoubleSeconds(kAgreement) *
                       session_->plan().world.world_size /
                       sum[kStopSignals.size()];
  next_agreement_ = step_ + std::max<int64_t>(1, static_cast<int64_t>(steps));
  last_agreement_ = now;
  last_agreed_step_ = step_;
  save_is_due_ = sum[kStopSignals.size() + 1] > 0;
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    if (sum[i] > 0) return kStopSignals[i];
  }
  return 0;
}

absl::Status Trainer::CheckFinite() {
  std::optional<int64_t> bad;
  RETURN_IF_ERROR(
      StatusFromTorch([&] { bad = session_->step().first_bad_step(); }));
  if (!bad.has_value()) return absl::OkStatus();
  // Nothing was updated since: the step's own batch gives its gradients again.
  const int64_t behind = step_ - *bad;
  ASSIGN_OR_RETURN(const StepBatch batch,
                   session_->train_loader().Load(
                       samples_ - behind * training().batch_size()));
  RETURN_IF_ERROR(session_->step().ComputeGradients(batch));
  double loss = 0;
  std::string parameter;
  RETURN_IF_ERROR(StatusFromTorch([&] {
    loss = session_->step().metrics().loss.item<double>();
    parameter = FirstNonFiniteGradient(*session_->state().parameters);
  }));
  const bool loss_alone = parameter.empty() && !std::isfinite(loss);
  return absl::AbortedError(absl::StrCat(
      "step ", *bad + 1, " gave a ", loss_alone ? "loss" : "gradient",
      " that is not finite (loss ", loss,
      loss_alone          ? ", every gradient is finite"
      : parameter.empty() ? ", overflow in the norm"
                          : absl::StrCat(", first in ", parameter),
      "); nothing was updated with it. Lower optimizer.adamw.lr, set "
      "optimizer.clip_norm, or use a wider precision.mode"));
}

RunDescription Trainer::Describe() const {
  const RunPlan& plan = session_->plan();
  return {.build = BuildSummary(),
          .config_hash = ConfigHash(plan.config),
          .device = plan.device.name,
          .world_size = plan.world.world_size,
          .precision = std::string(plan.precision.name()),
          .attention = absl::StrCat(
              plan.backend.backend->name(),
              plan.config.attention().backend() == AttentionConfig::AUTO
                  ? " (chosen by AUTO; --dry_run says why)"
                  : " (as configured)"),
          .data = session_->data().train->description(),
          .run_folder = folder_.path,
          .saves = DescribeSaves(plan.config.checkpoint()),
          .parameters = plan.num_parameters,
          .batch_size = training().batch_size(),
          .context = plan.shape.context,
          .micro_batches = training().micro_batches(),
          .first_step = first_step_,
          .steps = training().steps(),
          .flops_per_token = plan.flops_per_token,
          .peak_tflops = PeakTflops(plan),
          .memory_table = FormatMemoryTable(plan.memory.report)};
}

}  // namespace tessera
