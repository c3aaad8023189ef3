#include "trainers/run/instruments.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "framework/base/log.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/device_spec.h"
#include "framework/observe/gpu_counters.h"
#include "framework/observe/gpu_sensors.h"
#include "framework/observe/nvtx_observer.h"
#include "framework/observe/phase_timer.h"
#include "framework/observe/trace/kernel_trace.h"
#include "trainers/plan/step_rows.h"

namespace tessera {
namespace {

// Null, after a line that says why, if the GPU's sensors cannot be read.
std::unique_ptr<Instrument> MakeGpuCounters(const RunPlan& plan) {
  const auto log = [&](absl::string_view what) {
    if (plan.world.prints()) LogInfo(absl::StrCat("GPU counters: ", what));
  };
  absl::StatusOr<std::unique_ptr<GpuSensors>> sensors =
      OpenNvml(plan.device.uuid);
  if (!sensors.ok()) {
    log(absl::StrCat("none (", sensors.status().message(), ")"));
    return nullptr;
  }
  GpuCounterOptions options{.world_size = plan.world.world_size};
  const DeviceSpec* const spec = FindDeviceSpec(plan.device.name);
  if (spec != nullptr && !plan.config.observe().has_peak_tflops()) {
    options.peak_mhz = spec->peak_mhz(ProductKindOf(plan.precision));
  }
  auto reader =
      std::make_unique<GpuCounterReader>(*std::move(sensors), options);
  if (!reader->missing().empty()) log(reader->missing());
  return reader;
}

// Null unless the config asks for them.
std::unique_ptr<ActivitySource> MakeKernelCounters(const TraceConfig& config) {
  if constexpr (kCudaBuild) {
    if (config.kernel_counters()) return CuptiKernelCounters();
  }
  return nullptr;
}

std::unique_ptr<Instrument> MakeKernelTrace(const RunPlan& plan,
                                            const std::string& folder) {
  const TraceConfig& config = plan.config.observe().trace();
  return std::make_unique<KernelTrace>(
      KernelTraceOptions{.schedule = {.wait = config.wait(),
                                      .warmup = config.warmup(),
                                      .active = config.active(),
                                      .repeat = config.repeat()},
                         .folder = folder + "/trace",
                         .rank = plan.world.rank,
                         .world_size = plan.world.world_size,
                         .simulated = plan.world.simulated,
                         .device = plan.world.simulated
                                       ? plan.device.name + ", simulated"
                                       : plan.device.name,
                         .rows = RowsOfStep(plan),
                         .rates = RatesOf(plan)},
      ActivitiesOf(plan.device.device, config.max_records()),
      MakeKernelCounters(config));
}

}  // namespace

Instruments::Instruments(const RunPlan& plan, const std::string& folder) {
  const ObserveConfig& config = plan.config.observe();
  if (config.phases()) {
    instruments_.push_back(std::make_unique<PhaseTimer>(PhaseTimerOptions{
        .device = plan.device.device,
        .detail_every_steps =
            config.block_phases() ? config.log_every_steps() : 0}));
  }
  if (config.gpu_counters() && plan.device.is_cuda()) {
    if (auto counters = MakeGpuCounters(plan); counters != nullptr) {
      instruments_.push_back(std::move(counters));
    }
  }
  if (config.trace().active() > 0) {
    instruments_.push_back(MakeKernelTrace(plan, folder));
  }
  if (config.memory()) {
    auto memory = CreateMemoryRecorder(plan.device.device);
    memory_ = memory.get();
    instruments_.push_back(std::move(memory));
  }
  if (plan.device.is_cuda()) AddSnapshotWriter(plan);
  std::vector<PhaseObserver*> observers;
  if constexpr (kCudaBuild) {
    if (config.nvtx()) {
      nvtx_ = CreateNvtxObserver();
      observers.push_back(nvtx_.get());
    }
  }
  for (const std::unique_ptr<Instrument>& instrument : instruments_) {
    if (instrument->phases() == nullptr) continue;
    observers.push_back(instrument->phases());
  }
  if (!observers.empty()) phases_.emplace(std::move(observers));
}

void Instruments::AddSnapshotWriter(const RunPlan& plan) {
  const ObserveConfig& config = plan.config.observe();
  if constexpr (kCudaBuild) {
    if (config.memory_snapshot_on_oom() || config.has_memory_snapshot_step()) {
      auto snapshots = CreateSnapshotWriter(
          {.history = config.memory() || config.has_memory_snapshot_step(),
           .at_step = config.has_memory_snapshot_step()
                          ? std::optional(config.memory_snapshot_step())
                          : std::nullopt,
           .on_out_of_memory = config.memory_snapshot_on_oom(),
           .rank = plan.world.rank});
      snapshots_ = snapshots.get();
      instruments_.push_back(std::move(snapshots));
    }
  }
}

void Instruments::SetSession(Session& session) {
  if (memory_ != nullptr) NameBuffers(session, memory_);
}

absl::Status Instruments::NameSnapshot(const absl::Status& status) const {
  if (!absl::IsResourceExhausted(status) || snapshots_ == nullptr) {
    return status;
  }
  const std::string file = snapshots_->out_of_memory_file();
  if (file.empty()) return status;
  return absl::ResourceExhaustedError(
      absl::StrCat(status.message(), "what held the memory: ", file,
                   "\n  (open it at pytorch.org/memory_viz)\n"));
}

void NameBuffers(Session& session, MemoryRecorder* memory) {
  const auto own = [&](MemoryCategory category, const at::Tensor& buffer) {
    if (buffer.defined()) memory->Own(category, buffer);
  };
  const TrainingState state = session.state();
  const WeightBuffers& weights = state.parameters->weights();
  for (const at::Tensor& buffer : {weights.master, weights.high, weights.low}) {
    own(MemoryCategory::kParameters, buffer);
  }
  own(MemoryCategory::kShadow, weights.shadow);
  own(MemoryCategory::kGradients, state.parameters->grad());
  own(MemoryCategory::kOptimizer, state.optimizer->exp_avg());
  own(MemoryCategory::kOptimizer, state.optimizer->exp_avg_sq());
  if (const Ema* const ema = state.optimizer->ema(); ema != nullptr) {
    own(MemoryCategory::kOptimizer, ema->average());
  }
  own(MemoryCategory::kActivations, session.step().arena());
}

}  // namespace tessera
