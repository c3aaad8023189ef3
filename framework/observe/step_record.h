#ifndef FRAMEWORK_OBSERVE_STEP_RECORD_H_
#define FRAMEWORK_OBSERVE_STEP_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>

namespace tessera {

// Metrics after optimizer step `step`; the first step is 1. Rates and times are
// means over the steps since the previous record. The first record of a process
// excludes its first step, which is slower (libraries load, memory is
// allocated, kernels are chosen), unless it is the only step.
struct StepRecord {
  int64_t step = 0;
  double loss = 0;       // mean nats per token of the global batch
  double grad_norm = 0;  // global L2 norm before clipping
  double lr = 0;
  double step_ms = 0;
  double tokens_per_s = 0;  // over all ranks
  double tflops = 0;  // of the model, per device: trainers/plan/step_plan.h
  // tflops over the device's peak; absent if the peak is unknown.
  std::optional<double> mfu;
  // Peak of allocated device memory so far; absent without a GPU.
  std::optional<double> peak_gib;
  std::optional<double> loss_scale;  // only with dynamic loss scaling
};

// The loss on the validation data after optimizer step `step`.
struct EvalRecord {
  int64_t step = 0;
  double loss = 0;  // mean nats per token
  // Entropy of the validation data's token frequencies, where it is known: the
  // loss of a model that knows only these.
  std::optional<double> unigram_entropy;
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
