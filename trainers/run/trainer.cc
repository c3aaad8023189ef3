#include "trainers/run/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "framework/base/check.h"
#include "framework/base/exit_code.h"
#include "framework/base/file.h"
#include "framework/base/host_memory.h"
#include "framework/base/log.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/base/text_proto.h"
#include "framework/base/torch_status.h"
#include "framework/checkpoint/checkpoint_config.h"
#include "framework/checkpoint/checkpoint_directory.h"
#include "framework/cuda/device.h"
#include "framework/observe/format.h"
#include "framework/program/memory.h"
#include "trainers/build_info.h"
#include "trainers/config/config_loader.h"
#include "trainers/generation/text_generation.h"
#include "trainers/run/evaluation.h"
#include "trainers/run/non_finite_diagnosis.h"
#include "trainers/run/numbers_of_ranks.h"
#include "trainers/run/run_identity.h"
#include "trainers/run/sample_at_end.h"
#include "trainers/run/session_description.h"
#include "trainers/run/start_check.h"
#include "trainers/run/stop_agreement.h"

namespace tessera {
namespace {

// Follows the name of a set on which the averaged weights are evaluated.
constexpr absl::string_view kEmaSuffix = " (EMA)";

// Whether the GPU has had an error after which this process cannot use it any
// more, such as an illegal address. Does not wait.
bool HasFailed(c10::Device device) {
  return device.is_cuda() &&
         !StatusFromTorch([&] { CurrentStream(device).query(); }).ok();
}

// Waits until the steps that were launched are done. Unlike Synchronize() it
// does not wait for the copy of a save, which has a stream of its own.
void WaitForStep(c10::Device device) {
  if (device.is_cuda()) CurrentStream(device).synchronize();
}

// Whether an error of the GPU is reported by the op that caused it.
bool LaunchesBlock() {
  const char* const blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  return blocking != nullptr && absl::string_view(blocking) == "1";
}

// The number of ranks on rank 0's machine, which are the first: a rank there
// has all earlier ones beside it.
absl::StatusOr<size_t> RanksOfFirstMachine(Session& session) {
  const RunPlan& plan = session.plan();
  ASSIGN_OR_RETURN(const std::vector<int64_t> are_there,
                   NumbersOfRanks(plan.world.rank == plan.world.local_rank,
                                  plan.device.device, &session.group()));
  return absl::c_count(are_there, 1);
}

// FailedPrecondition unless all ranks see the run's folder, if ranks of several
// machines write checkpoints together.
absl::Status CheckFolderIsShared(Session& session, const std::string& folder) {
  const RunPlan& plan = session.plan();
  if (!session.state().divided() || plan.world.simulated) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const size_t first, RanksOfFirstMachine(session));
  if (plan.layout.checkpoint_ranks().size() <= first) return absl::OkStatus();
  const std::string token = absl::StrCat(folder, "/.shared");
  if (plan.is_writer()) {
    RETURN_IF_ERROR(
        WriteFileAtomically(token, absl::StrCat(absl::GetCurrentTimeNanos())));
  }
  RETURN_IF_ERROR(session.group().Barrier());
  uint64_t seen = 0;
  if (const absl::StatusOr<std::string> text = ReadFile(token); text.ok()) {
    static_cast<void>(absl::SimpleAtoi(*text, &seen));
  }
  absl::Status shared = session.group().AgreeOn(
      absl::StrCat("what ranks see in ", folder,
                   " (--out; ranks that divide the state write checkpoints "
                   "together, so all machines must share it)"),
      seen);
  if (plan.is_writer()) shared.Update(RemoveTree(token));
  return shared;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(
    std::unique_ptr<Session> session, RunFolder folder,
    TrainerOptions options) {
  std::unique_ptr<Trainer> trainer(
      new Trainer(std::move(session), std::move(folder), std::move(options)));
  RETURN_IF_ERROR(trainer->Resume());
  RETURN_IF_ERROR(trainer->OpenOutputs());
  RETURN_IF_ERROR(
      CheckFolderIsShared(*trainer->session_, trainer->folder_.path));
  return trainer;
}

Trainer::Trainer(std::unique_ptr<Session> session, RunFolder folder,
                 TrainerOptions options)
    : session_(std::move(session)),
      batches_(&session_->train_loader(), session_->plan().device.device),
      folder_(std::move(folder)),
      options_(std::move(options)) {}

absl::Status Trainer::Resume() {
  RETURN_IF_ERROR(CheckStart(session_->plan(), folder_, &session_->data()));
  if (folder_.resume_from != nullptr) {
    const Checkpoint& checkpoint = *folder_.resume_from;
    RETURN_IF_ERROR(Restore(checkpoint, session_->state()));
    step_ = first_step_ = saved_step_ = checkpoint.step();
    ASSIGN_OR_RETURN(samples_, SamplesOf(checkpoint));
    if (session_->state().optimizer->ema() != nullptr && is_writer() &&
        !checkpoint.Tensors(kEmaFile).ok()) {
      LogInfo(absl::StrCat(
          checkpoint.folder(),
          " has no averaged weights; the average (optimizer.ema) starts from "
          "its weights"));
    }
    const std::string changes =
        ConfigChanges(checkpoint, session_->plan().config);
    if (!changes.empty() && is_writer()) {
      LogInfo(absl::StrCat("resuming ", checkpoint.folder(),
                           " with a changed config:\n", changes));
    }
    newest_checkpoint_ = checkpoint.folder();
    origin_.resume = {.step = step_, .checkpoint = newest_checkpoint_};
    RETURN_IF_ERROR(NoteDamagedCheckpoints());
    folder_.resume_from.reset();  // its mapped files are as large as the model
  } else if (session_->plan().config.checkpoint().has_init_from()) {
    TESSERA_CHECK(folder_.init_from != nullptr);
    RETURN_IF_ERROR(StartFrom(*folder_.init_from));
    folder_.init_from.reset();
  }
  if (is_writer()) WarnOfMissedSteps();
  session_->step().SetNextStep(step_);
  RETURN_IF_ERROR(session_->group().AgreeOn("the step to resume from", step_));
  return StatusFromTorch([&] {
    // Each rank has read or initialised its own weights.
    const ParameterStore& parameters = *session_->state().parameters;
    for (const at::Tensor& buffer : parameters.weights().Defined()) {
      if (parameters.IsDivided(buffer)) continue;
      // As bytes, because NCCL and Gloo do not support INT16.
      ThrowIfError(session_->group().Broadcast(buffer.view(at::kByte), 0));
    }
  });
}

absl::Status Trainer::NoteDamagedCheckpoints() {
  if (!is_writer()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<CheckpointPath> paths,
                   ListCheckpoints(folder_.checkpoints()));
  for (const CheckpointPath& path : paths) {
    // OpenRunFolder() skips newer ones only if they are damaged.
    if (path.step > step_) damaged_.insert(path.step);
  }
  return absl::OkStatus();
}

void Trainer::WarnOfMissedSteps() const {
  const RunConfig& config = session_->plan().config;
  const ObserveConfig& observe = config.observe();
  const TraceConfig& trace = observe.trace();
  const int64_t left = config.training().steps() - step_;
  const int64_t window =
      int64_t{trace.wait()} + trace.warmup() + trace.active();
  if (left > 0 && trace.active() > 0 && window > left) {
    LogWarning(absl::StrCat(
        "nothing will be traced: wait, warmup and active of observe.trace are ",
        window, " steps together, and this process does ",
        FormatCountOf(left, "step")));
  }
  if (left > 0 && observe.has_memory_snapshot_step() &&
      observe.memory_snapshot_step() <= step_) {
    LogWarning(absl::StrCat("there will be no snapshot of memory: step ",
                            observe.memory_snapshot_step(),
                            " (observe.memory_snapshot_step) was before"));
  }
}

absl::Status Trainer::StartFrom(const Checkpoint& checkpoint) {
  RETURN_IF_ERROR(RestoreParameters(checkpoint, session_->state().parameters));
  if (Ema* const ema = session_->state().optimizer->ema(); ema != nullptr) {
    RETURN_IF_ERROR(ema->Restart());
  }
  origin_.init = {{"step", 0},
                  {"checkpoint", checkpoint.folder()},
                  {"checkpoint_step", checkpoint.step()}};
  if (is_writer()) {
    LogInfo(absl::StrCat("starting from the weights of ", checkpoint.folder()));
  }
  return absl::OkStatus();
}

absl::Status Trainer::OpenOutputs() {
  session_->group().SetReportFolder(folder_.path);
  const RunPlan& plan = session_->plan();
  if (is_writer() && !plan.world.simulated &&
      plan.layout.sharding().divides_weights() &&
      plan.config.training().sample_tokens_at_end() > 0) {
    LogWarning(
        "there will be no sample at the end, because each rank has only a part "
        "of the weights (layout.zero: 3); trainers:generate makes one from the "
        "checkpoint");
  }
  if (is_writer()) {
    ASSIGN_OR_RETURN(outputs_, RunOutputs::Open(*session_, origin_, &folder_));
    observers_ = outputs_->observers();
  }
  if (!plan.world.simulated) RETURN_IF_ERROR(MakeSaver());
  if (options_.instruments != nullptr) {
    options_.instruments->SetSession(*session_);
    for (const auto& instrument : options_.instruments->all()) {
      observers_.push_back(instrument.get());
    }
  }
  observers_.insert(observers_.end(), options_.observers.begin(),
                    options_.observers.end());
  return absl::OkStatus();
}

absl::Status Trainer::MakeSaver() {
  const RunPlan& plan = session_->plan();
  ASSIGN_OR_RETURN(const StateFiles files, ShareState(session_->state(), 0, 1,
                                                      options_.max_file_bytes));
  std::vector<int> ranks = plan.layout.checkpoint_ranks();
  // The others would have nothing to write.
  size_t writers = std::min(ranks.size(), files.own.size());
  // Where every rank has the whole state, machines need not share a folder.
  const bool divided = session_->state().divided();
  if (!divided) {
    ASSIGN_OR_RETURN(const size_t first, RanksOfFirstMachine(*session_));
    writers = std::min(writers, first);
  }
  ranks.resize(writers);
  const auto own = absl::c_find(ranks, plan.layout.rank);
  if (own == ranks.end()) return absl::OkStatus();
  // Those that share this machine's memory.
  const int64_t here = std::min<int64_t>(plan.world.local_world_size,
                                         static_cast<int64_t>(ranks.size()));
  saver_ = std::make_unique<CheckpointSaver>(
      session_->state(), &session_->step(),
      CheckpointSaver::Options{
          .background = plan.config.checkpoint().background(),
          .ranks = ranks,
          .index = static_cast<int>(own - ranks.begin()),
          .group = &session_->group(),
          .max_file_bytes = options_.max_file_bytes,
          .write_point = options_.write_point,
          // Before any of them takes memory for its copy.
          .free_host_bytes = [free = FreeHostBytes() / here] { return free; }});
  return absl::OkStatus();
}

absl::Status Trainer::Run() {
  absl::Status status = Explain(StatusFromTorchOr([this] { return Train(); }));
  // Another rank has ended, and a save may wait for it.
  if (absl::IsUnavailable(status) && saver_ != nullptr) {
    saver_->GiveUpOnOthers();
  }
  // If a step failed, a save may be in flight.
  const std::string before = newest_checkpoint_;
  if (const absl::Status saved = NoteSave(/*waits=*/true); !saved.ok()) {
    LogWarning(absl::StrCat(newest_checkpoint_ == before
                                ? "the last checkpoint is not complete: "
                                : "the last checkpoint is complete, but: ",
                            saved.message()));
  }
  for (RunObserver* observer : observers_) {
    status.Update(observer->OnTrainEnd(status));
  }
  return status;
}

absl::Status Trainer::Train() {
  timed_since_ = saved_at_ = MonotonicNow();
  StopAgreement agreement(&session_->group(), session_->plan().device.device,
                          step_);
  if (step_ >= training().steps() && is_writer()) {
    LogInfo(absl::StrCat("nothing to train: ", origin_.resume.checkpoint,
                         " is at step ", step_, " of ", training().steps(),
                         "; raise training.steps"));
  }
  RETURN_IF_ERROR(Notify(observers_, &RunObserver::OnTrainStart,
                         Describe(*session_, folder_.path, first_step_)));
  while (step_ < training().steps()) {
    PrepareToSave();
    RETURN_IF_ERROR(DoStep());
    RETURN_IF_ERROR(AfterStep());
    RETURN_IF_ERROR(CollectSave(/*waits=*/false));
    ASSIGN_OR_RETURN(const StopDecision decision,
                     agreement.Agree(step_, {.signo = stop_.received(),
                                             .save = ClockAsksToSave()}));
    if (decision.signo != 0) {
      RETURN_IF_ERROR(SaveCheckpoint(/*waits=*/true));
      RETURN_IF_ERROR(FinishSave());
      RETURN_IF_ERROR(session_->FinishGroup());
      return SignalStatus(decision.signo);
    }
    if (decision.save) RETURN_IF_ERROR(SaveByTheClock());
  }
  RETURN_IF_ERROR(SaveCheckpoint(/*waits=*/true));
  RETURN_IF_ERROR(FinishSave());
  // Before the sample: the other ranks would wait for it, but only rank 0 makes
  // one.
  RETURN_IF_ERROR(session_->FinishGroup());
  // A simulated rank does not have the weights of a trained model.
  if (!is_writer() || session_->plan().world.simulated) {
    return absl::OkStatus();
  }
  saver_ = nullptr;  // it uses the step
  ASSIGN_OR_RETURN(const std::optional<SampleRecord> sample,
                   SampleAtEnd(*session_));
  if (!sample.has_value()) return absl::OkStatus();
  return Notify(observers_, &RunObserver::OnSample, *sample);
}

absl::Status Trainer::DoStep() {
  begun_ = step_ + 1;
  const StepScope scope(session_->phases(), begun_);
  const absl::StatusOr<Batch> batch = batches_.Next(samples_);
  if (absl::IsDataLoss(batch.status())) return SaveIfFailed(batch.status());
  RETURN_IF_ERROR(batch.status());
  RETURN_IF_ERROR(session_->step().Run(*batch, session_->LearningRate(step_)));
  if (session_->plan().config.observe().saved_bytes() && step_ == first_step_) {
    RETURN_IF_ERROR(ReportKeptBytes());
  }
  ++step_;
  samples_ += training().batch_size();
  ++timed_steps_;
  // Only rank 0 has a progress bar, which a terminal may be slow to take.
  std::optional<ExcusedWork> shows;
  if (is_writer()) shows.emplace(&session_->group(), "shows its progress");
  return SaveIfFailed(Notify(observers_, &RunObserver::OnStepEnd, step_));
}

absl::Status Trainer::Explain(const absl::Status& status) const {
  const RunPlan& plan = session_->plan();
  if (absl::IsInternal(status) && HasFailed(plan.device.device)) {
    return absl::InternalError(absl::StrCat(
        "step ", begun_, ": ", status.message(),
        LaunchesBlock() && !plan.step->graph
            ? ""
            : "; a GPU reports errors late, so the op that failed may "
              "be an earlier one. To name it, run again with "
              "CUDA_LAUNCH_BLOCKING=1 in the environment and "
              "execution.mode: EAGER"));
  }
  const absl::Status explained = ExplainOutOfMemory(plan, status);
  return options_.instruments == nullptr
             ? explained
             : options_.instruments->NameSnapshot(explained);
}

absl::Status Trainer::ReportKeptBytes() {
  const StepPlan& plan = *session_->plan().step;
  const SavedBytesRecord record{
      .step = step_ + 1, .bytes = KeptBytes(plan.train, plan.train_lifetimes)};
  if (const int64_t held = session_->step().kept_bytes();
      held != record.bytes) {
    return absl::InternalError(
        absl::StrCat("the step kept ", held,
                     " bytes for its backward pass, but the plan "
                     "has ",
                     record.bytes));
  }
  return Notify(observers_, &RunObserver::OnSavedBytes, record);
}

absl::Status Trainer::AfterStep() {
  const RunConfig& config = session_->plan().config;
  const bool last = step_ == training().steps();
  const bool logs = last || Due(config.observe().log_every_steps());
  const bool evaluates = last || (training().has_eval_every_steps() &&
                                  Due(training().eval_every_steps()));
  const bool saves = last || (config.checkpoint().has_every_steps() &&
                              Due(config.checkpoint().every_steps()));
  // Excludes the slow first step from the mean time of the others.
  const bool starts_up = step_ == first_step_ + 1 && !logs;
  const bool collects = InstrumentIsDue();
  if (!logs && !evaluates && !saves && !starts_up && !collects) {
    return absl::OkStatus();
  }
  // The time of the steps includes the work that they launched.
  WaitForStep(session_->plan().device.device);
  training_time_ += MonotonicNow() - timed_since_;
  if (starts_up) RestartTiming();
  if (logs) RETURN_IF_ERROR(LogStep());
  if (collects) RETURN_IF_ERROR(CollectFromInstruments());
  if (evaluates) RETURN_IF_ERROR(EvaluateNow());
  if (saves) RETURN_IF_ERROR(SaveCheckpoint(/*waits=*/last));
  timed_since_ = MonotonicNow();
  return absl::OkStatus();
}

absl::Status Trainer::LogStep() {
  RETURN_IF_ERROR(CheckFinite(*session_, step_, samples_));
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
    record.peak_gib =
        CurrentMemory(plan.device.device).peak_allocated / kGibibyte;
  }
  RestartTiming();
  if (options_.instruments != nullptr) {
    for (const auto& instrument : options_.instruments->all()) {
      RETURN_IF_ERROR(instrument->AddTo(&record));
    }
  }
  // A disk to which a checkpoint is written may be slow to take the log.
  const ExcusedWork work(&session_->group(), "writes the log");
  return SaveIfFailed(Notify(observers_, &RunObserver::OnStepLogged, record));
}

bool Trainer::InstrumentIsDue() const {
  if (options_.instruments == nullptr) return false;
  const auto& all = options_.instruments->all();
  return std::any_of(all.begin(), all.end(), [](const auto& instrument) {
    return instrument->IsDue();
  });
}

absl::Status Trainer::CollectFromInstruments() {
  for (const auto& instrument : options_.instruments->all()) {
    if (!instrument->IsDue()) continue;
    const ExcusedWork work(&session_->group(), "collects a measurement");
    RETURN_IF_ERROR(SaveIfFailed(instrument->Collect()));
  }
  return absl::OkStatus();
}

void Trainer::RestartTiming() {
  training_time_ = absl::ZeroDuration();
  timed_steps_ = 0;
}

absl::Status Trainer::EvaluateNow() {
  if (training().eval_batches() == 0) return absl::OkStatus();
  const Tokenizer* const tokenizer = session_->data().tokenizer.get();
  if (tokenizer != nullptr && !bytes_of_token_.defined()) {
    ASSIGN_OR_RETURN(bytes_of_token_,
                     BytesOfTokens(*tokenizer, session_->plan().shape.vocab));
  }
  std::vector<EvalRecord> records;
  absl::Status evaluated = EvaluateSets("", &records);
  if (evaluated.ok() && session_->state().optimizer->ema() != nullptr) {
    RETURN_IF_ERROR(session_->step().ExchangeEma());
    evaluated = EvaluateSets(kEmaSuffix, &records);
    // Before anything is saved. After an error a divided state is not saved,
    // and the other ranks would not take part.
    if (evaluated.ok() || !session_->state().divided()) {
      RETURN_IF_ERROR(session_->step().ExchangeEma());
    }
  }
  const ExcusedWork work(&session_->group(), "writes the log");
  for (const EvalRecord& record : records) {
    RETURN_IF_ERROR(SaveIfFailed(
        Notify(observers_, &RunObserver::OnValidationEnd, record)));
  }
  return absl::IsDataLoss(evaluated) ? SaveIfFailed(evaluated) : evaluated;
}

absl::Status Trainer::EvaluateSets(absl::string_view suffix,
                                   std::vector<EvalRecord>* records) {
  for (const Session::Validation& set : session_->validation()) {
    ASSIGN_OR_RETURN(records->emplace_back(), EvaluateOn(set));
    absl::StrAppend(&records->back().set, suffix);
  }
  return absl::OkStatus();
}

absl::StatusOr<EvalRecord> Trainer::EvaluateOn(const Session::Validation& set) {
  const PhaseScope scope(session_->phases(), "evaluation");
  const int64_t windows =
      std::min(set.source->windows(),
               int64_t{training().eval_batches()} * training().batch_size());
  ASSIGN_OR_RETURN(const EvaluationResult result,
                   Evaluate(session_->step(), *set.loader, session_->group(),
                            windows, bytes_of_token_));
  EvalRecord record{.step = step_,
                    .set = set.name,
                    .loss = result.loss,
                    .bits_per_byte = result.bits_per_byte};
  if (set.name == kValidationName) {
    record.unigram_entropy = session_->data().unigram_entropy;
  }
  return record;
}

absl::Status Trainer::SaveCheckpoint(bool waits) {
  if (saved_step_ == step_ || session_->plan().world.simulated) {
    return absl::OkStatus();
  }
  const PhaseScope scope(session_->phases(), "checkpoint");
  // After a signal the step may still run, which is no wait for a checkpoint.
  WaitForStep(session_->plan().device.device);
  RETURN_IF_ERROR(CheckFinite(*session_, step_, samples_));
  const absl::Time begun = MonotonicNow();
  RETURN_IF_ERROR(FinishSave());
  if (const absl::Duration waited = MonotonicNow() - begun;
      waited >= absl::Seconds(1) && is_writer()) {
    LogInfo(absl::StrFormat(
        "step %d: training waited %.1f s because the previous checkpoint was "
        "still being written; save less often",
        step_, absl::ToDoubleSeconds(waited)));
  }
  if (session_->state().divided()) {
    // The ranks gather the state next, with a time limit.
    RETURN_IF_ERROR(session_->group().Barrier());
  }
  if (saver_ != nullptr) {
    CheckpointJob job = MakeJobInRunFolder();
    job.begun = begun;
    RETURN_IF_ERROR(saver_->Start(std::move(job), waits));
    // A rank whose part is written already and failed must end before it waits
    // for the others, which wait for that part.
    RETURN_IF_ERROR(CollectSave(/*waits=*/false));
  } else {
    RETURN_IF_ERROR(
        CheckpointSaver::TakePart(session_->state(), &session_->step()));
  }
  saved_step_ = step_;
  saved_at_ = MonotonicNow();
  return session_->group().Barrier();
}

CheckpointJob Trainer::MakeJobInRunFolder() {
  CheckpointJob job = MakeJob(folder_.checkpoints());
  if (!is_writer()) return job;
  // Saving must not recreate a removed folder with checkpoints but no log.
  job.check = [this] { return outputs_->CheckInPlace(); };
  const CheckpointConfig& keep = session_->plan().config.checkpoint();
  damaged_.erase(step_);  // it is written again
  job.retention =
      RetentionPolicy{.keep_last = keep.keep_last(), .damaged = damaged_};
  if (keep.has_keep_every_steps()) {
    job.retention->keep_every_steps = keep.keep_every_steps();
  }
  return job;
}

CheckpointJob Trainer::MakeJob(const std::string& directory) {
  const RunPlan& plan = session_->plan();
  CheckpointJob job{
      .directory = directory, .step = step_, .begun = MonotonicNow()};
  if (!is_writer()) return job;
  job.config_text = PrintWithDefaults(plan.config);
  job.tokenizer = session_->data().tokenizer.get();
  job.state = ExportState(session_->state());
  job.state["step"] = step_;
  job.state["samples"] = samples_;
  job.state["world_size"] = plan.world.world_size;
  AddDataIdentity(*session_, &job.state);
  job.state["config_hash"] = ConfigHash(plan.config);
  job.state["build"] = BuildInfo();
  job.state[kProductsState] = plan.products->record;
  return job;
}

absl::Status Trainer::SaveNow(const std::string& directory) {
  CheckpointJob job = MakeJob(directory);
  job.alone = true;
  RETURN_IF_ERROR(saver_->Start(std::move(job), /*waits=*/true));
  const std::optional<SavedCheckpoint> saved = saver_->Collect(/*waits=*/true);
  if (!saved->folder.empty()) newest_checkpoint_ = saved->folder;
  return saved->status;
}

absl::Status Trainer::CollectSave(bool waits) {
  const absl::Status status = NoteSave(waits);
  if (status.ok() || !is_writer()) return status;
  const absl::Status in_place = outputs_->CheckInPlace();
  return in_place.ok() ? status : SaveIfFailed(in_place);
}

absl::Status Trainer::NoteSave(bool waits) {
  if (saver_ == nullptr) return absl::OkStatus();
  const ExcusedWork work(&session_->group(), kWritesACheckpoint);
  const std::optional<SavedCheckpoint> saved = saver_->Collect(waits);
  if (!saved.has_value()) return absl::OkStatus();
  for (const std::string& warning : saved->warnings) LogWarning(warning);
  if (saved->folder.empty()) {
    saved_step_ = -1;
    return saved->status;
  }
  newest_checkpoint_ = saved->folder;
  RETURN_IF_ERROR(saved->status);
  if (!is_writer()) return absl::OkStatus();
  return Notify(
      observers_, &RunObserver::OnCheckpointSaved,
      CheckpointRecord{.step = saved->step,
                       .folder = saved->folder,
                       .held_up_s = absl::ToDoubleSeconds(saved->held_up),
                       .writing_s = absl::ToDoubleSeconds(saved->writing)});
}

void Trainer::PrepareToSave() {
  if (saver_ == nullptr) return;
  const CheckpointConfig& config = session_->plan().config.checkpoint();
  const int64_t every = config.every_steps();
  const bool by_steps = config.has_every_steps() &&
                        step_ / every * every + every < training().steps();
  // Not from the first step on: a shorter run would not use the memory.
  const bool by_the_clock =
      MonotonicNow() - saved_at_ >= SaveInterval(config) / 2;
  if (by_steps || by_the_clock) saver_->Prepare();
}

absl::Status Trainer::SaveIfFailed(const absl::Status& status) {
  if (status.ok() || saver_ == nullptr || !is_writer()) return status;
  const ExcusedWork work(&session_->group(), kWritesACheckpoint);
  // If it fails, this step is saved below.
  NoteSave(/*waits=*/true).IgnoreError();
  // Another run may have taken the folder's name, or the folder may be in the
  // middle of its removal.
  std::string folder = folder_.path;
  const bool in_place = outputs_->CheckInPlace().ok();
  std::string advice = "; the run resumes from there";
  if (!in_place) {
    while (absl::EndsWith(folder, "/")) folder.pop_back();
    absl::StrAppend(
        &folder, ".rescued-",
        absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone()));
    advice =
        absl::StrCat("; resume with --resume=", folder, " and a new --out");
  }
  // The weights are those of step_ only if every step changed them. Unlike
  // CheckFinite(), this does not need the other ranks.
  std::optional<int64_t> bad;
  absl::Status saved =
      StatusFromTorch([&] { bad = session_->step().first_bad_step(); });
  if (saved.ok() && bad.has_value()) {
    saved = absl::AbortedError(absl::StrCat(
        "step ", *bad + 1, " gave a loss or gradient that is not finite"));
  }
  const bool there = in_place && saved_step_ == step_;
  if (saved.ok() && !there && session_->state().divided()) {
    saved = absl::FailedPreconditionError(
        "other ranks have parts of the optimizer's state (layout.zero)");
  }
  if (saved.ok() && !in_place) saved = MakeDirectories(folder);
  if (saved.ok() && !there) saved = SaveNow(folder + "/checkpoints");
  return absl::Status(
      status.code(),
      saved.ok() ? absl::StrCat(status.message(), ". Step ", step_,
                                " is saved in ", newest_checkpoint_, advice)
                 : absl::StrCat(status.message(), ". Step ", step_,
                                " is not saved: ", saved.message()));
}

bool Trainer::ClockAsksToSave() const {
  return saver_ != nullptr && is_writer() && !saver_->in_flight() &&
         MonotonicNow() - saved_at_ >=
             SaveInterval(session_->plan().config.checkpoint());
}

absl::Status Trainer::SaveByTheClock() {
  WaitForStep(session_->plan().device.device);
  training_time_ += MonotonicNow() - timed_since_;
  RETURN_IF_ERROR(SaveCheckpoint());
  timed_since_ = MonotonicNow();
  return absl::OkStatus();
}

}  // namespace tessera
