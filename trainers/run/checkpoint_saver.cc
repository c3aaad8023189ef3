#include "trainers/run/checkpoint_saver.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "framework/base/check.h"
#include "framework/base/log.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "trainers/generation/text_generation.h"
#include "trainers/run/gather_state.h"

namespace tessera {

CheckpointSaver::CheckpointSaver(const TrainingState& state, TrainStep* step,
                                 Options options)
    : state_(state), step_(step), options_(std::move(options)) {}

CheckpointSaver::~CheckpointSaver() {
  stop_ = true;
  // The futures wait for their threads, which use the other members.
  saved_ = {};
  allocating_ = {};
  step_->BeforeNextUpdate(nullptr);
}

void CheckpointSaver::Prepare() {
  const bool copies = options_.background || state_.divided();
  if (!copies || copy_ != nullptr || allocating_.valid()) return;
  allocating_ = std::async(std::launch::async, [this]() -> Allocated {
    ASSIGN_OR_RETURN(const StateFiles files, Files(Writers({})));
    return StateCopy::Allocate(state_, files.own, options_.free_host_bytes(),
                               stop_);
  });
}

CheckpointWriters CheckpointSaver::Writers(const CheckpointJob& job) const {
  if (job.alone) return {.ranks = {options_.ranks[options_.index]}};
  return {.ranks = options_.ranks, .index = options_.index, .gone = [this] {
            return gone_.load();
          }};
}

absl::StatusOr<StateFiles> CheckpointSaver::Files(
    const CheckpointWriters& writers) const {
  return ShareState(state_, writers.index,
                    static_cast<int>(writers.ranks.size()),
                    options_.max_file_bytes);
}

absl::Status CheckpointSaver::TakePart(const TrainingState& state,
                                       TrainStep* step) {
  if (!state.divided()) return absl::OkStatus();
  RETURN_IF_ERROR(step->Flush());
  return GatherState(state, {});
}

std::unique_ptr<ExcusedWork> CheckpointSaver::Excuse() const {
  if (options_.group == nullptr) return nullptr;
  return std::make_unique<ExcusedWork>(options_.group, kWritesACheckpoint);
}

bool CheckpointSaver::HasCopy(bool waits) {
  if (copy_ != nullptr) return true;
  const bool ready =
      allocating_.valid() && allocating_.wait_for(std::chrono::seconds(0)) ==
                                 std::future_status::ready;
  const bool may_do_without = !state_.divided();
  if (may_do_without && (!options_.background || (waits && !ready))) {
    return false;
  }
  Prepare();
  const std::unique_ptr<ExcusedWork> work = Excuse();
  Allocated allocated = allocating_.get();
  if (allocated.ok()) {
    copy_ = *std::move(allocated);
    return true;
  }
  options_.background = false;
  LogWarning(absl::StrCat(allocated.status().message(),
                          "; training waits while checkpoints are written"));
  return false;
}

absl::Status CheckpointSaver::Start(CheckpointJob job, bool waits) {
  TESSERA_CHECK(!in_flight(), "one save at a time");
  const absl::Time begun = job.begun;
  RETURN_IF_ERROR(step_->Flush());
  if (!job.alone && HasCopy(waits)) {
    RETURN_IF_ERROR(copy_->Begin());
    step_->BeforeNextUpdate(
        [copy = copy_.get()] { copy->MakeCurrentStreamWait(); });
    saved_ = std::async(std::launch::async, [this, job = std::move(job)] {
      const absl::Status copied = copy_->Wait();
      return Write(job, copied.ok()
                            ? absl::StatusOr<StateBuffers>(copy_->buffers())
                            : copied);
    });
    if (!options_.background) {
      const std::unique_ptr<ExcusedWork> work = Excuse();
      saved_.wait();
    }
  } else if (state_.divided()) {
    // The other ranks take part in it.
    RETURN_IF_ERROR(GatherState(state_, {}));
    saved_ = std::async(std::launch::async, [this, job = std::move(job)] {
      return Write(
          job, absl::FailedPreconditionError(
                   "not enough host memory to gather the optimizer's state, "
                   "which ranks divide (layout.zero); set layout.zero: 0, or "
                   "use a machine with more memory"));
    });
  } else {
    const std::unique_ptr<ExcusedWork> work = Excuse();
    std::promise<SavedCheckpoint> saved;
    saved.set_value(Write(job, BuffersOf(state_)));
    saved_ = saved.get_future();
  }
  held_up_ = MonotonicNow() - begun;
  return absl::OkStatus();
}

std::optional<SavedCheckpoint> CheckpointSaver::Collect(bool waits) {
  if (!in_flight() || (!waits && saved_.wait_for(std::chrono::seconds(0)) !=
                                     std::future_status::ready)) {
    return std::nullopt;
  }
  SavedCheckpoint saved = saved_.get();
  saved.held_up = held_up_;
  if (copy_ != nullptr) saved.held_up += copy_->StreamWaited();
  return saved;
}

SavedCheckpoint CheckpointSaver::Write(
    const CheckpointJob& job, const absl::StatusOr<StateBuffers>& from) const {
  const absl::Time begin = MonotonicNow();
  SavedCheckpoint saved{.step = job.step};
  saved.status = StatusFromTorchOr([&]() -> absl::Status {
    ASSIGN_OR_RETURN(saved.folder, WriteFiles(job, from));
    if (!job.retention.has_value()) return absl::OkStatus();
    RetentionPolicy policy = *job.retention;
    policy.verified = saved.folder;
    ASSIGN_OR_RETURN(
        PrunedCheckpoints pruned,
        PruneCheckpoints(job.directory, policy, options_.write_point));
    saved.warnings = std::move(pruned.warnings);
    return absl::OkStatus();
  });
  saved.writing = MonotonicNow() - begin;
  return saved;
}

absl::StatusOr<std::string> CheckpointSaver::WriteFiles(
    const CheckpointJob& job, const absl::StatusOr<StateBuffers>& from) const {
  const CheckpointWriters writers = Writers(job);
  ASSIGN_OR_RETURN(const StateFiles files, Files(writers));
  if (job.check != nullptr) RETURN_IF_ERROR(job.check());
  ASSIGN_OR_RETURN(std::unique_ptr<CheckpointWriter> writer,
                   CheckpointWriter::Begin(job.directory, job.step,
                                           options_.write_point, writers));
  const absl::Status written =
      !from.ok() ? from.status() : StatusFromTorchOr([&] {
        return AddTensors(state_, files, *from, writer.get());
      });
  if (!writers.leads()) return writer->Finish(written);
  RETURN_IF_ERROR(written);
  RETURN_IF_ERROR(AddIndices(files, writer.get()));
  if (job.tokenizer != nullptr) {
    RETURN_IF_ERROR(
        writer->AddText(kTokenizerFile, TokenizerToJson(*job.tokenizer)));
  }
  return writer->Commit(job.state, job.config_text);
}

}  // namespace tessera
