#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/compiled_fused/banded_product.h"
#include "attention_backends/compiled_fused/softmax_compiler.h"
#include "bench/measure/allocation_figures.h"
#include "bench/measure/cell_measurement.h"
#include "bench/measure/dtype_observation.h"
#include "bench/measure/instrument_cost.h"
#include "bench/measure/sample_summary.h"
#include "bench/measure/sensed_work.h"
#include "bench/measure/start_up.h"
#include "bench/measure/trace_figures.h"
#include "bench/measure/utilisation.h"
#include "framework/base/file.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/device.h"
#include "framework/cuda/float_type_of.h"
#include "framework/observe/block_path.h"
#include "framework/observe/memory/memory_recorder.h"
#include "framework/observe/memory/snapshot_writer.h"
#include "framework/observe/phase_timer.h"
#include "framework/observe/trace/activity_source.h"
#include "framework/observe/trace/kernel_trace.h"
#include "framework/observe/trace/step_profile.h"
#include "framework/observe/trace/trace_recorder.h"
#include "trainers/plan/step_rows.h"
#include "trainers/run/instruments.h"
#include "trainers/run/session.h"
#include "trainers/run/session_description.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;
constexpr double kGiB = 1073741824.0;
constexpr int64_t kSnapshotStep = 1;

using Call = std::function<absl::Status()>;

// One cell at work.
class TrainingCell {
 public:
  TrainingCell(const StudyConfig& study, const RunConfig& config,
               const std::string& snapshot_folder)
      : study_(study), config_(config), snapshot_folder_(snapshot_folder) {}

  absl::StatusOr<Json> Measure();

 private:
  absl::StatusOr<RunPlan> MakePlan() const;
  // Makes session_ and batch_.
  absl::Status Prepare(RunPlan plan);
  // Does what Prepare() does and measures it as figures_["start_up"]. For a
  // process that has not used the device yet.
  absl::Status StartUpAndPrepare();
  bool Records(TrainingStudy::Record record) const {
    const auto& records = study_.training().record();
    return std::find(records.begin(), records.end(), record) != records.end();
  }
  c10::Device device() const { return session_->plan().device.device; }

  // Milliseconds of one call by the host's clock, the device idle before and
  // after.
  absl::StatusOr<double> TimeMs(const Call& call);
  // Milliseconds of each of `most` calls, or of fewer if the study limits
  // their time.
  absl::StatusOr<std::vector<double>> Samples(const Call& call, int most);
  absl::StatusOr<Json> Timed(const Call& call);

  // Attaches an observer until the result goes out of scope. Graphs are
  // recorded anew each time, so that they hold its events only that long.
  auto Attach(PhaseObserver* observer) {
    const auto observe = [this](std::vector<PhaseObserver*> observers) {
      phases_.Set(std::move(observers));
      session_->step().SetNextStep(0);
    };
    observe({observer});
    // If this fails, the device has failed, and the cell with it.
    return absl::Cleanup(
        [observe] { StatusFromTorch([&] { observe({}); }).IgnoreError(); });
  }

  absl::Status Parts();
  absl::Status Step();
  absl::Status Phases();
  // Milliseconds by phase; with `detail` also inside forward and backward.
  absl::StatusOr<Json> PhaseTimes(bool detail);
  absl::Status Memory();
  absl::Status Energy();
  absl::Status Compile();
  absl::Status Dtypes();
  absl::Status Allocations();
  // What the device's memory holds in `call`, as if it were a step.
  absl::StatusOr<MemoryRecord> Recorded(const Call& call);
  absl::Status Snapshot();
  absl::Status Kernels();
  // What a trace of up to three times `call` says.
  absl::StatusOr<Json> Traced(const Call& call);

  const StudyConfig& study_;
  const RunConfig& config_;
  const std::string snapshot_folder_;
  // Followed by the instrument of one measurement at a time, or none.
  PhaseObserverList phases_{{}};
  // Only with ALLOCATIONS and SNAPSHOT. Older than the session, all of whose
  // memory they see.
  std::unique_ptr<MemoryRecorder> memory_;
  std::unique_ptr<SnapshotWriter> snapshots_;
  std::unique_ptr<Session> session_;
  Batch batch_;
  Json figures_;
};

absl::StatusOr<double> TrainingCell::TimeMs(const Call& call) {
  Synchronize(device());
  const absl::Time begin = MonotonicNow();
  RETURN_IF_ERROR(call());
  Synchronize(device());
  return absl::ToDoubleMilliseconds(MonotonicNow() - begin);
}

absl::StatusOr<std::vector<double>> TrainingCell::Samples(const Call& call,
                                                          int most) {
  std::vector<double> ms;
  const absl::Time end = MonotonicNow() + TimeLimit(study_);
  for (int i = 0;
       i < most && (i < study_.min_iterations() || MonotonicNow() < end); ++i) {
    ASSIGN_OR_RETURN(const double sample, TimeMs(call));
    ms.push_back(sample);
  }
  return ms;
}

absl::StatusOr<Json> TrainingCell::Timed(const Call& call) {
  ASSIGN_OR_RETURN(std::vector<double> ms, Samples(call, study_.warmup()));
  ASSIGN_OR_RETURN(const std::vector<double> timed,
                   Samples(call, study_.iterations()));
  Json figures = Summary(timed);
  if (Records(TrainingStudy::FIRST_STEPS)) {
    ms.insert(ms.end(), timed.begin(), timed.end());
    figures["first"] = ms[0];
    if (ms.size() > 1) figures["second"] = ms[1];
  }
  return figures;
}

absl::Status TrainingCell::Parts() {
  ResetPeakMemory(device());
  ASSIGN_OR_RETURN(figures_["forward_ms"],
                   Timed([this] { return session_->step().Forward(batch_); }));
  if (Records(TrainingStudy::MEMORY)) {
    // What waits for the backward pass and the update is idle in inference.
    const MemoryReport& planned = session_->plan().memory.report;
    figures_["memory"]["forward_peak_gib"] =
        (CurrentMemory(device()).peak_allocated - planned.gradients -
         planned.optimizer) /
        kGiB;
  }
  ASSIGN_OR_RETURN(figures_["forward_backward_ms"], Timed([this] {
                     return session_->step().ForwardBackward(batch_);
                   }));
  return absl::OkStatus();
}

absl::Status TrainingCell::Step() {
  ASSIGN_OR_RETURN(figures_["step_ms"], Timed([this] {
                     return session_->step().Run(batch_, 1e-4);
                   }));
  const RunPlan& plan = session_->plan();
  const double seconds = figures_["step_ms"]["mean"].get<double>() * 1e-3;
  const double tokens_per_s = plan.tokens_per_step() / seconds;
  const double tflops = tokens_per_s * plan.flops_per_token * 1e-12;
  figures_["tokens_per_s"] = tokens_per_s;
  figures_["tflops"] = tflops;
  if (const std::optional<double> peak = PeakTflops(plan); peak.has_value()) {
    figures_["mfu_pct"] = 100 * tflops / *peak;
    figures_["peak_tflops"] = *peak;
  }
  figures_["parameters_m"] = plan.num_parameters * 1e-6;
  figures_["backend"] = std::string(plan.backend.backend->name());
  return absl::OkStatus();
}

absl::Status TrainingCell::Phases() {
  // The phases of the step apart, because events inside them take time.
  ASSIGN_OR_RETURN(Json phases, PhaseTimes(/*detail=*/true));
  ASSIGN_OR_RETURN(const Json outer, PhaseTimes(/*detail=*/false));
  phases.update(outer);
  const double forward = phases["forward"], backward = phases["backward"];
  figures_["phase_ratios"] = {
      {"backward_to_forward", backward / forward},
      {"optimizer_to_both",
       phases["optimizer"].get<double>() / (forward + backward)}};
  figures_["phases"] = std::move(phases);
  return absl::OkStatus();
}

absl::StatusOr<Json> TrainingCell::PhaseTimes(bool detail) {
  PhaseTimer timer({.device = device(), .detail_every_steps = detail ? 1 : 0});
  const auto attached = Attach(&timer);
  Json phases = Json::object();
  int64_t steps = 0;
  const Call step = [&]() -> absl::Status {
    {
      const StepScope scope(&phases_, ++steps);
      RETURN_IF_ERROR(session_->step().Run(batch_, 1e-4));
    }
    // The events of a graph hold the times of its last launch only.
    StepRecord record;
    RETURN_IF_ERROR(timer.AddTo(&record));
    // A block's part summed over all blocks: "forward/blocks/attention".
    for (const PhaseTime& phase : record.phases) {
      const std::string path = FoldBlocks(phase.path, "blocks");
      phases[path] = phases.value(path, 0.0) + phase.ms;
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(step());  // records the graph
  phases.clear();
  ASSIGN_OR_RETURN(const std::vector<double> timed,
                   Samples(step, study_.iterations()));
  for (Json& ms : phases) {
    ms = ms.get<double>() / static_cast<double>(timed.size());
  }
  return phases;
}

absl::Status TrainingCell::Memory() {
  ResetPeakMemory(device());
  RETURN_IF_ERROR(session_->step().Run(batch_, 1e-4));
  Synchronize(device());
  const MemoryUse use = CurrentMemory(device());
  const MemoryReport& planned = session_->plan().memory.report;
  Json& memory = figures_["memory"];
  memory["peak_gib"] = use.peak_allocated / kGiB;
  memory["reserved_gib"] = use.peak_reserved / kGiB;
  memory["planned_gib"] = planned.allocated() / kGiB;
  memory["planned_reserved_gib"] = planned.reserved() / kGiB;
  if (device().is_cuda()) {
    const auto error_pct = [](int64_t plan, int64_t measured) {
      return 100.0 * static_cast<double>(plan - measured) / measured;
    };
    memory["plan_error_pct"] =
        error_pct(planned.allocated(), use.peak_allocated);
    memory["reserved_error_pct"] =
        error_pct(planned.reserved(), use.peak_reserved);
    memory["context_gib"] = (BytesInUse(device()) - use.reserved) / kGiB;
    memory["planned_context_gib"] = planned.context / kGiB;
  }
  memory["at"] = session_->plan().memory.peak;
  memory["categories_gib"] = {
      {"parameters", planned.parameters / kGiB},
      {"shadow", planned.shadow / kGiB},
      {"gradients", planned.gradients / kGiB},
      {"optimizer", planned.optimizer / kGiB},
      {"activations", planned.activations / kGiB},
      {"activation_gradients", planned.activation_gradients / kGiB},
      {"workspace", planned.workspace / kGiB},
      {"libraries", planned.libraries / kGiB},
      {"other", planned.other / kGiB},
      {"rounding", planned.slack / kGiB}};
  memory["kept_gib"] = session_->step().kept_bytes() / kGiB;
  return absl::OkStatus();
}

absl::Status TrainingCell::Energy() {
  if (!device().is_cuda()) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      const SensedWork sensed,
      RepeatUnderSensors([this] { return session_->step().Run(batch_, 1e-4); },
                         session_->plan().device, absl::Milliseconds(500)));
  Json& energy = figures_["energy"] = Json::object();
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value.has_value()) energy[name] = *value;
  };
  add("joules", sensed.joules);
  if (sensed.joules.has_value()) {
    energy["joules_per_token"] =
        *sensed.joules /
        static_cast<double>(session_->plan().tokens_per_step());
  }
  add("power_w", sensed.gpu.power_w);
  add("sm_mhz", sensed.gpu.sm_mhz);
  return absl::OkStatus();
}

absl::Status TrainingCell::Compile() {
  if constexpr (kCudaBuild) {
    const RunPlan& plan = session_->plan();
    if (!device().is_cuda() ||
        plan.backend.backend->name() != "COMPILED_FUSED") {
      return absl::OkStatus();
    }
    const fused::SoftmaxSpec spec = {.type = FloatTypeOf(plan.attention.dtype),
                                     .mask = fused::MaskOf(plan.attention)};
    const absl::Time begin = MonotonicNow();
    RETURN_IF_ERROR(fused::CompileSoftmax(spec, plan.device.compute_capability,
                                          /*cache=*/nullptr)
                        .status());
    figures_["compile_ms"] = absl::ToDoubleMilliseconds(MonotonicNow() - begin);
  }
  return absl::OkStatus();
}

absl::Status TrainingCell::Dtypes() {
  ASSIGN_OR_RETURN(figures_["dtypes"]["toy"],
                   ToyModelDtypes(TargetOf(session_->plan())));
  figures_["dtypes"]["model"] = LanguageModelDtypes(*session_);
  return absl::OkStatus();
}

absl::StatusOr<MemoryRecord> TrainingCell::Recorded(const Call& call) {
  const auto attached = Attach(memory_->phases());
  {
    const StepScope scope(&phases_, 1);
    RETURN_IF_ERROR(call());
  }
  StepRecord record;
  RETURN_IF_ERROR(memory_->AddTo(&record));
  return *std::move(record.memory);
}

absl::Status TrainingCell::Allocations() {
  NameBuffers(*session_, memory_.get());
  if (Records(TrainingStudy::PARTS)) {
    ASSIGN_OR_RETURN(const MemoryRecord record, Recorded([this] {
                       return session_->step().Forward(batch_);
                     }));
    figures_["forward_allocations"] =
        AllocationFigures(record, session_->plan());
  }
  ASSIGN_OR_RETURN(const MemoryRecord record, Recorded([this] {
                     return session_->step().Run(batch_, 1e-4);
                   }));
  Json& figures = figures_["allocations"] =
      AllocationFigures(record, session_->plan());
  figures["saved"] = SavedFigures(record, session_->plan());
  figures["residual"] = ResidualFigures(record, session_->plan());
  return absl::OkStatus();
}

absl::Status TrainingCell::Snapshot() {
  if (snapshots_ == nullptr) return absl::OkStatus();
  const auto attached = Attach(snapshots_->phases());
  {
    const StepScope scope(&phases_, kSnapshotStep);
    RETURN_IF_ERROR(session_->step().Run(batch_, 1e-4));
  }
  RETURN_IF_ERROR(MakeDirectories(snapshot_folder_));
  RETURN_IF_ERROR(snapshots_->OnTrainStart({.run_folder = snapshot_folder_}));
  return snapshots_->OnStepEnd(kSnapshotStep);
}

absl::StatusOr<Json> TrainingCell::Traced(const Call& call) {
  constexpr double kMostSteps = 3;
  const int steps = static_cast<int>(
      std::clamp(absl::ToDoubleMilliseconds(TimeLimit(study_)) /
                     figures_["step_ms"]["median"].get<double>(),
                 1.0, kMostSteps));
  const int64_t max_records = config_.observe().trace().max_records();
  TraceRecorder recorder(ActivitiesOf(device(), max_records));
  const auto attached = Attach(&recorder);
  RETURN_IF_ERROR(call());  // records the graph
  RETURN_IF_ERROR(recorder.Start());
  RETURN_IF_ERROR(call());  // CUPTI's own first time
  Synchronize(device());
  recorder.Keep();
  for (int i = 0; i < steps; ++i) {
    const StepScope scope(&phases_, i + 1);
    RETURN_IF_ERROR(call());
  }
  ASSIGN_OR_RETURN(Trace trace, recorder.Stop());
  if (trace.dropped > 0) {
    return absl::OutOfRangeError(absl::StrCat(
        "the trace of ", steps, " steps has ", trace.dropped,
        " kernels and calls more than observe.trace.max_records=", max_records,
        " allows; raise it in the study's `set`"));
  }
  trace.device = session_->plan().device.name;
  const StepProfile profile = BuildStepProfile(
      trace, RowsOfStep(session_->plan()), RatesOf(session_->plan()));
  return TraceFigures(ProfileToJson(trace, profile),
                      session_->plan().attention.d);
}

absl::Status TrainingCell::Kernels() {
  ASSIGN_OR_RETURN(figures_["kernels"], Traced([this] {
                     return session_->step().Run(batch_, 1e-4);
                   }));
  if (figures_["kernels"]["steps"].get<int>() > 1) {
    figures_["kernels"]["off_pct"] =
        100 * (figures_["kernels"]["wall_ms"].get<double>() /
                   figures_["step_ms"]["mean"].get<double>() -
               1);
  }
  if (!Records(TrainingStudy::PARTS)) return absl::OkStatus();
  ASSIGN_OR_RETURN(figures_["forward_kernels"],
                   Traced([this] { return session_->step().Forward(batch_); }));
  return absl::OkStatus();
}

absl::StatusOr<RunPlan> TrainingCell::MakePlan() const {
  ASSIGN_OR_RETURN(const WorldInfo world, WorldFromEnvironment());
  RunConfig config = config_;
  if (Records(TrainingStudy::PHASES) || Records(TrainingStudy::KERNELS) ||
      Records(TrainingStudy::ALLOCATIONS)) {
    KeepPhasesApart(config.mutable_execution());
  }
  return PlanRun(config, world);
}

absl::Status TrainingCell::Prepare(RunPlan plan) {
  if (Records(TrainingStudy::ALLOCATIONS)) {
    memory_ = CreateMemoryRecorder(
        plan.device.device,
        {.most_largest = std::numeric_limits<size_t>::max()});
  }
  if constexpr (kCudaBuild) {
    if (Records(TrainingStudy::SNAPSHOT) && plan.device.is_cuda()) {
      snapshots_ =
          CreateSnapshotWriter({.history = true, .at_step = kSnapshotStep});
    }
  }
  ASSIGN_OR_RETURN(session_,
                   Session::Create(std::move(plan), {.phases = &phases_}));
  ASSIGN_OR_RETURN(batch_, session_->train_loader().Load(0));
  return absl::OkStatus();
}

absl::Status TrainingCell::StartUpAndPrepare() {
  const absl::Time begin = MonotonicNow();
  ASSIGN_OR_RETURN(RunPlan plan, MakePlan());
  const c10::Device device = plan.device.device;
  const double context_ms = absl::ToDoubleMilliseconds(MonotonicNow() - begin);
  StartUp start_up(
      ActivitiesOf(device, config_.observe().trace().max_records()));
  RETURN_IF_ERROR(start_up.Begin());
  if constexpr (kCudaBuild) {
    if (device.is_cuda()) {
      RETURN_IF_ERROR(start_up.Do("cuBLAS's handles", device, [] {
        return StatusFromTorch([] { MakeBlasHandles(); });
      }));
    }
  }
  RETURN_IF_ERROR(
      start_up.Do("session", device, [&] { return Prepare(std::move(plan)); }));
  for (const char* step : {"step 1", "step 2", "step 3"}) {
    RETURN_IF_ERROR(start_up.Do(
        step, device, [this] { return session_->step().Run(batch_, 1e-4); }));
  }
  ASSIGN_OR_RETURN(figures_["start_up"], start_up.End());
  const Json context = {{"part", "plan and CUDA context"}, {"ms", context_ms}};
  figures_["start_up"].insert(figures_["start_up"].begin(), context);
  return absl::OkStatus();
}

absl::StatusOr<Json> TrainingCell::Measure() {
  const absl::Time begin = MonotonicNow();
  if (Records(TrainingStudy::START_UP)) {
    RETURN_IF_ERROR(StartUpAndPrepare());
  } else {
    ASSIGN_OR_RETURN(RunPlan plan, MakePlan());
    RETURN_IF_ERROR(Prepare(std::move(plan)));
  }
  figures_["setup_ms"] = absl::ToDoubleMilliseconds(MonotonicNow() - begin);
  if (Records(TrainingStudy::PARTS)) RETURN_IF_ERROR(Parts());
  RETURN_IF_ERROR(Step());
  if (Records(TrainingStudy::PHASES)) RETURN_IF_ERROR(Phases());
  if (Records(TrainingStudy::KERNELS)) RETURN_IF_ERROR(Kernels());
  if (Records(TrainingStudy::MEMORY)) RETURN_IF_ERROR(Memory());
  if (Records(TrainingStudy::ENERGY)) RETURN_IF_ERROR(Energy());
  if (Records(TrainingStudy::COMPILE)) RETURN_IF_ERROR(Compile());
  if (Records(TrainingStudy::DTYPES)) RETURN_IF_ERROR(Dtypes());
  if (Records(TrainingStudy::ALLOCATIONS)) RETURN_IF_ERROR(Allocations());
  if (Records(TrainingStudy::SNAPSHOT)) RETURN_IF_ERROR(Snapshot());
  if (Records(TrainingStudy::UTILISATION)) {
    ASSIGN_OR_RETURN(figures_["utilisation"], MeasureUtilisation(*session_));
  }
  if (Records(TrainingStudy::INSTRUMENTS)) {
    ASSIGN_OR_RETURN(figures_["instruments"],
                     MeasureInstrumentCost(*session_, study_));
  }
  return std::move(figures_);
}

}  // namespace

absl::StatusOr<Json> MeasureTrainingCell(const StudyConfig& study,
                                         const RunConfig& config,
                                         const std::string& snapshot_folder) {
  absl::StatusOr<Json> figures =
      TrainingCell(study, config, snapshot_folder).Measure();
  // The next cell starts with an empty device, also after an error.
  const absl::Status emptied = StatusFromTorch([&] {
    EmptyCache(config.training().device() == TrainingConfig::CUDA ? c10::kCUDA
                                                                  : c10::kCPU);
  });
  RETURN_IF_ERROR(figures.status());
  RETURN_IF_ERROR(emptied);
  return figures;
}

}  // namespace tessera
