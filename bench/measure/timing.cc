#include "bench/measure/timing.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <numeric>

#include "framework/base/monotonic_clock.h"
#include "framework/base/statistics.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/device.h"

namespace tessera {

Summary Summarize(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  return {.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / n,
          .std = StandardDeviation(samples).value_or(0),
          .median = *Median(samples),
          .min = samples.front(),
          .max = samples.back(),
          .samples = static_cast<int>(n)};
}

nlohmann::ordered_json ToJson(const Summary& summary) {
  return {{"mean", summary.mean},     {"std", summary.std},
          {"median", summary.median}, {"min", summary.min},
          {"max", summary.max},       {"samples", summary.samples}};
}

absl::Status Repeat(int most, const Repetition& repetition,
                    absl::FunctionRef<absl::Status()> once) {
  const absl::Time end = MonotonicNow() + repetition.time_limit;
  for (int i = 0;
       i < most && (i < repetition.min_iterations || MonotonicNow() < end);
       ++i) {
    RETURN_IF_ERROR(once());
  }
  return absl::OkStatus();
}

double MsSince(absl::Time begin) {
  return absl::ToDoubleMilliseconds(MonotonicNow() - begin);
}

absl::StatusOr<double> TimeMs(absl::FunctionRef<absl::Status()> call,
                              c10::Device device) {
  if (device.is_cpu()) {
    const absl::Time begin = MonotonicNow();
    RETURN_IF_ERROR(call());
    return MsSince(begin);
  }
  double elapsed_ms = 0;
  RETURN_IF_ERROR(StatusFromTorchOr([&]() -> absl::Status {
    const c10::Stream stream =
        at::accelerator::getCurrentStream(device.index());
    c10::Event start(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    start.record(stream);
    RETURN_IF_ERROR(call());
    end.record(stream);
    end.synchronize();
    elapsed_ms = start.elapsedTime(end);
    return absl::OkStatus();
  }));
  return elapsed_ms;
}

absl::StatusOr<Times> TimeCalls(absl::FunctionRef<absl::Status()> call,
                                c10::Device device,
                                const Repetition& repetition,
                                absl::FunctionRef<absl::Status()> prepare) {
  Times times;
  const auto repeat = [&](int most, std::vector<double>* ms) {
    return Repeat(most, repetition, [&]() -> absl::Status {
      RETURN_IF_ERROR(prepare());
      ASSIGN_OR_RETURN(const double sample, TimeMs(call, device));
      ms->push_back(sample);
      return absl::OkStatus();
    });
  };
  RETURN_IF_ERROR(repeat(repetition.warmup, &times.warmup_ms));
  Synchronize(device);
  const absl::Time begin = MonotonicNow();
  RETURN_IF_ERROR(repeat(repetition.iterations, &times.ms));
  times.wall_ms = MsSince(begin) / static_cast<double>(times.ms.size());
  return times;
}

absl::StatusOr<std::vector<double>> MaxOverRanks(std::vector<double> values,
                                                 ProcessGroup* group,
                                                 c10::Device device) {
  if (group->world_size() == 1 || values.empty()) return values;
  RETURN_IF_ERROR(StatusFromTorchOr([&]() -> absl::Status {
    const int64_t n = static_cast<int64_t>(values.size());
    const at::Tensor own =
        at::from_blob(values.data(), {n}, at::kDouble).to(device);
    const at::Tensor all = at::empty({group->world_size(), n}, own.options());
    RETURN_IF_ERROR(group->AllGather(own, all));
    const at::Tensor largest = all.amax(0).cpu();
    const double* data = largest.const_data_ptr<double>();
    values.assign(data, data + n);
    return absl::OkStatus();
  }));
  return values;
}

}  // namespace tessera
