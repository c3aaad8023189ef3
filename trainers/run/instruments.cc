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
#include "trainers/plan/dry_run.h"

namespace tessera {
namespace {

// Null, after a line that says why, if the GPU's sensors cannot be read.
std::unique_ptr<Instrument> MakeGpuCounters(const RunPlan& plan) {
  const auto log = [&](absl::string_view what) {
    if (plan.world.rank == 0) LogInfo(absl::StrCat("GPU counters: ", what));
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
                         .device = plan.device.name,
                         .rows = RowsOfStep(plan)},
      ActivitiesOf(plan.device.device, config.max_records()));
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

}  // namespace tessera
