#include "framework/observe/memory/snapshot_writer.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/torch_status.h"
#include "framework/observe/memory/memory_snapshot.h"

namespace tessera {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// Allocations and frees that the allocator remembers: those of several steps
// of a large model, in some tens of MiB.
constexpr size_t kHistoryEntries = 100'000;

absl::Status WriteSnapshot(const std::string& path) {
  return StatusFromTorchOr([&] {
    allocator::SnapshotInfo info = allocator::snapshot();
    return WriteFileAtomically(
        path,
        PickleSnapshot(
            {.segments = std::move(info.segments),
             .traces = std::move(info.device_traces),
             .settings = info.config_metadata.last_allocator_settings,
             .expandable_segments = info.config_metadata.expandable_segments}));
  });
}

// What LibTorch's hooks, which any thread may call, need of a writer.
class HookState {
 public:
  void Enter(absl::string_view name, const char* kind) {
    const absl::MutexLock lock(&mutex_);
    stack_.push_back({std::string(name), kind});
    context_.reset();
  }
  void Leave() {
    const absl::MutexLock lock(&mutex_);
    stack_.pop_back();
    context_.reset();
  }
  void SetStep(int64_t step) {
    const absl::MutexLock lock(&mutex_);
    step_ = step;
    context_.reset();
  }
  std::shared_ptr<c10::GatheredContext> Context() {
    const absl::MutexLock lock(&mutex_);
    if (context_ == nullptr) {
      context_ = std::make_shared<AllocationContext>();
      context_->frames.assign(stack_.rbegin(), stack_.rend());
      context_->step = step_;
    }
    return context_;
  }

  void SetOutOfMemoryPath(const std::string& path) {
    const absl::MutexLock lock(&mutex_);
    out_of_memory_path_ = path;
  }
  void OnOutOfMemory() {
    std::string path;
    {
      const absl::MutexLock lock(&mutex_);
      path = out_of_memory_path_;
    }
    if (path.empty()) return;
    const absl::Status status = WriteSnapshot(path);
    if (!status.ok()) {
      LogWarning(absl::StrCat("no memory snapshot: ", status.message()));
      return;
    }
    const absl::MutexLock lock(&mutex_);
    out_of_memory_file_ = path;
  }
  std::string out_of_memory_file() {
    const absl::MutexLock lock(&mutex_);
    return out_of_memory_file_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<AllocationContext::Frame> stack_ ABSL_GUARDED_BY(mutex_);
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of the stack and step; null until asked for.
  std::shared_ptr<AllocationContext> context_ ABSL_GUARDED_BY(mutex_);
  std::string out_of_memory_path_ ABSL_GUARDED_BY(mutex_);
  std::string out_of_memory_file_ ABSL_GUARDED_BY(mutex_);
};

ABSL_CONST_INIT absl::Mutex current_mutex(absl::kConstInit);

std::shared_ptr<HookState>& Current()
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(current_mutex) {
  // Never destroyed: threads may free memory while the process exits.
  static auto* const current = new std::shared_ptr<HookState>;
  return *current;
}

void SetCurrent(std::shared_ptr<HookState> state) {
  const absl::MutexLock lock(&current_mutex);
  Current() = std::move(state);
}

std::shared_ptr<HookState> GetCurrent() {
  const absl::MutexLock lock(&current_mutex);
  return Current();
}

std::shared_ptr<c10::GatheredContext> GatherContext() {
  const std::shared_ptr<HookState> state = GetCurrent();
  return state == nullptr ? nullptr : state->Context();
}

class Writer : public SnapshotWriter, public PhaseObserver {
 public:
  explicit Writer(const SnapshotOptions& options) : options_(options) {
    SetCurrent(state_);
    if (options_.history) {
      allocator::recordHistory(true, GatherContext, kHistoryEntries,
                               allocator::RecordContext::ALL,
                               /*clearHistory=*/true, /*skip_actions=*/{});
    }
    if (options_.on_out_of_memory) {
      // LibTorch does not detach an observer, so there is one, which forwards.
      [[maybe_unused]] static const bool attached = [] {
        allocator::attachOutOfMemoryObserver(
            [](int64_t, size_t, size_t, size_t) {
              const std::shared_ptr<HookState> state = GetCurrent();
              if (state != nullptr) state->OnOutOfMemory();
            });
        return true;
      }();
    }
  }

  ~Writer() override {
    if (options_.history) {
      allocator::recordHistory(false, nullptr, 1,
                               allocator::RecordContext::NEVER,
                               /*clearHistory=*/true, /*skip_actions=*/{});
    }
    SetCurrent(nullptr);
  }

  std::string out_of_memory_file() const override {
    return state_->out_of_memory_file();
  }

  PhaseObserver* phases() override { return options_.history ? this : nullptr; }

  absl::Status OnTrainStart(const RunDescription& run) override {
    folder_ = run.run_folder;
    if (options_.on_out_of_memory) {
      state_->SetOutOfMemoryPath(PathOf("out_of_memory"));
    }
    return absl::OkStatus();
  }

  absl::Status OnStepEnd(int64_t step) override {
    if (step != options_.at_step) return absl::OkStatus();
    const std::string path =
        PathOf(absl::StrCat("memory_snapshot_step_", step));
    const absl::Status status = WriteSnapshot(path);
    if (!status.ok()) {
      LogWarning(absl::StrCat("no memory snapshot: ", status.message()));
    }
    return absl::OkStatus();
  }

  void BeginStep(int64_t step) noexcept override { state_->SetStep(step); }
  void EndStep() noexcept override { state_->SetStep(0); }
  void Begin(absl::string_view segment) noexcept override {
    state_->Enter(segment, "phase");
  }
  void End() noexcept override { state_->Leave(); }
  void BeginOp(absl::string_view name, OpResults) noexcept override {
    state_->Enter(name, "op");
  }
  void EndOp() noexcept override { state_->Leave(); }

 private:
  std::string PathOf(absl::string_view name) const {
    return absl::StrCat(
        folder_, "/", name,
        options_.rank == 0 ? "" : absl::StrCat("_rank_", options_.rank),
        ".pickle");
  }

  const SnapshotOptions options_;
  const std::shared_ptr<HookState> state_ = std::make_shared<HookState>();
  std::string folder_;
};

}  // namespace

std::unique_ptr<SnapshotWriter> CreateSnapshotWriter(
    const SnapshotOptions& options) {
  return std::make_unique<Writer>(options);
}

}  // namespace tessera
