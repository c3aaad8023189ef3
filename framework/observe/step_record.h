#ifndef FRAMEWORK_OBSERVE_STEP_RECORD_H_
#define FRAMEWORK_OBSERVE_STEP_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "framework/observe/memory_record.h"

namespace tessera {

// Time of a phase on the device.
struct PhaseTime {
  std::string path;   // "backward/block_3/attention"
  double ms = 0;      // mean per step; outside of steps, per occurrence
  int64_t count = 0;  // steps or occurrences that were timed
};

// What the GPU of a process did in steps, by its own sensors. gpu_counters.h
// says in which steps. What it does not report is absent.
struct GpuCounters {
  std::optional<double> sm_mhz;               // mean of readings
  std::optional<double> memory_mhz, celsius;  // the last reading
  std::optional<double> power_w;              // mean
  // power_w times StepRecord::step_ms; of this GPU.
  std::optional<double> joules_per_step;
  // Of all ranks' GPUs, if each draws as much as this one.
  std::optional<double> joules_per_token;
  // GpuUtilization, means.
  std::optional<double> sm_percent, tensor_percent, dram_percent;
  // StepRecord::mfu against the peak at sm_mhz.
  std::optional<double> mfu_at_clock;
  // What held the clock down at any reading: "power_cap", "thermal".
  std::vector<std::string> throttle_reasons;

  bool operator==(const GpuCounters&) const = default;
};

// Metrics after optimizer step `step`; the first step is 1. Rates and times are
// means over the steps since the previous record. The first record of a process
// excludes its first step, which is slower (libraries load, memory is
// allocated, kernels are chosen), unless it is the only step.
struct StepRecord {
  int64_t step = 0;
  // Mean nats per token of the global batch: what training minimises, with all
  // of its terms.
  double loss = 0;
  double grad_norm = 0;  // global L2 norm before clipping
  double lr = 0;
  double step_ms = 0;
  double tokens_per_s = 0;  // over all ranks
  double tflops = 0;  // of the model, per device: trainers/plan/step_plan.h
  // tflops over the device's peak; absent if the peak is unknown.
  std::optional<double> mfu;
  // Peak of allocated device memory so far; absent without a GPU.
  std::optional<double> peak_gib;
  std::optional<double> loss_scale;    // only with dynamic loss scaling
  std::vector<PhaseTime> phases;       // only with observe.phases
  std::optional<GpuCounters> gpu;      // only with observe.gpu_counters
  std::optional<MemoryRecord> memory;  // only with observe.memory
  // Steps since the previous record that were recorded for a trace, warm-up
  // included; only with observe.trace.
  std::optional<int64_t> traced_steps;
};

// A number of StepRecord. The run log, TensorBoard and the report's pages take
// theirs from the tables below.
struct StepField {
  const char* group;  // in TensorBoard: "perf" of perf/step_ms
  const char* name;   // there and in the run log
  const char* title;  // in a page
  const char* unit;   // in a page
  std::optional<double> (*read)(const StepRecord&);
  double scale = 1;  // to `unit`
};

template <auto kMember>
std::optional<double> Read(const StepRecord& record) {
  return record.*kMember;
}
template <auto kMember>
std::optional<double> ReadGpu(const StepRecord& record) {
  return record.gpu.has_value() ? (*record.gpu).*kMember : std::nullopt;
}

// In their order in the run log.
inline constexpr StepField kStepFields[] = {
    {"train", "loss", "training loss", "nats per token",
     Read<&StepRecord::loss>},
    {"train", "grad_norm", "gradient norm before clipping", "L2 norm",
     Read<&StepRecord::grad_norm>},
    {"train", "lr", "learning rate", "", Read<&StepRecord::lr>},
    {"perf", "step_ms", "step time", "ms", Read<&StepRecord::step_ms>},
    {"perf", "tokens_per_s", "throughput", "tokens/s",
     Read<&StepRecord::tokens_per_s>},
    {"perf", "tflops", "model FLOPs, per device", "TFLOP/s",
     Read<&StepRecord::tflops>},
    {"perf", "mfu", "MFU", "%", Read<&StepRecord::mfu>, 100},
    {"perf", "peak_gib", "peak of allocated memory so far", "GiB",
     Read<&StepRecord::peak_gib>},
    {"train", "loss_scale", "loss scale", "", Read<&StepRecord::loss_scale>}};
inline constexpr StepField kGpuFields[] = {
    {"gpu", "sm_mhz", "SM", "MHz", ReadGpu<&GpuCounters::sm_mhz>},
    {"gpu", "memory_mhz", "memory", "MHz", ReadGpu<&GpuCounters::memory_mhz>},
    {"gpu", "celsius", "temperature", "°C", ReadGpu<&GpuCounters::celsius>},
    {"gpu", "power_w", "power", "W", ReadGpu<&GpuCounters::power_w>},
    {"gpu", "joules_per_step", "energy per step", "J",
     ReadGpu<&GpuCounters::joules_per_step>},
    {"gpu", "joules_per_token", "energy per token", "J",
     ReadGpu<&GpuCounters::joules_per_token>},
    {"gpu", "sm_percent", "SMs, mean", "% of time",
     ReadGpu<&GpuCounters::sm_percent>},
    {"gpu", "tensor_percent", "tensor cores", "% of time",
     ReadGpu<&GpuCounters::tensor_percent>},
    {"gpu", "dram_percent", "memory bandwidth", "% of peak",
     ReadGpu<&GpuCounters::dram_percent>},
    {"gpu", "mfu_at_clock", "MFU at the clock seen", "%",
     ReadGpu<&GpuCounters::mfu_at_clock>, 100}};

// The name of the data that is held out from the training data.
inline constexpr char kValidationName[] = "validation";

// The loss on validation data after optimizer step `step`.
struct EvalRecord {
  int64_t step = 0;
  std::string set = kValidationName;
  double loss = 0;  // cross entropy, mean nats per token
  // The same per byte of text, in bits: unlike `loss`, it can be compared
  // between tokenizers. Absent if the tokens are not text.
  std::optional<double> bits_per_byte;
  // Entropy of the validation data's token frequencies, where it is known: the
  // loss of a model that knows only these.
  std::optional<double> unigram_entropy;
};

// A checkpoint that was saved.
struct CheckpointRecord {
  int64_t step = 0;
  std::string folder;
  double held_up_s = 0;  // how long training waited for it
  double writing_s = 0;  // how long writing took, beside training
};

// The memory that a step keeps for its backward pass.
struct SavedBytesRecord {
  int64_t step = 0;
  int64_t bytes = 0;  // peak, on this device
};

// Text that the trained model generated.
struct SampleRecord {
  std::string heading;  // "sample, token ids"
  std::string text;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_STEP_RECORD_H_
