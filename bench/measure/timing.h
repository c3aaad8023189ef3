#ifndef BENCH_MEASURE_TIMING_H_
#define BENCH_MEASURE_TIMING_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "c10/core/Device.h"
#include "framework/dist/process_group.h"
#include "nlohmann/json.hpp"

namespace tessera {

// Statistics of at least one sample (framework/base/statistics.h); a single one
// has the standard deviation 0.
struct Summary {
  double mean = 0, std = 0, median = 0, min = 0, max = 0;
  int samples = 0;
};
Summary Summarize(std::vector<double> samples);
// {mean, std, median, min, max, samples}.
nlohmann::ordered_json ToJson(const Summary& summary);

// How often a call is repeated: first without being timed, then timed. Either
// group ends early, but not before `min_iterations`, once it has taken
// `time_limit`.
struct Repetition {
  int warmup = 3, iterations = 10, min_iterations = 3;
  absl::Duration time_limit = absl::InfiniteDuration();
};

// Calls `once` `most` times, or less often as `repetition` says. Stops at the
// first error.
absl::Status Repeat(int most, const Repetition& repetition,
                    absl::FunctionRef<absl::Status()> once);

// Milliseconds since `begin`, which is MonotonicNow() of then.
double MsSince(absl::Time begin);

// Milliseconds of one call: on a GPU by events before and after it on the
// current stream, with the host waiting for the second; on a CPU by the
// monotonic clock.
absl::StatusOr<double> TimeMs(absl::FunctionRef<absl::Status()> call,
                              c10::Device device);

// How long repeated calls took.
struct Times {
  std::vector<double> warmup_ms, ms;  // of each call, TimeMs()
  // The mean time of a timed call together with its `prepare`, by the host's
  // clock.
  double wall_ms = 0;
};
// `prepare` is called before each call, and its time is not part of the call's.
absl::StatusOr<Times> TimeCalls(
    absl::FunctionRef<absl::Status()> call, c10::Device device,
    const Repetition& repetition,
    absl::FunctionRef<absl::Status()> prepare = absl::OkStatus);

// The largest of each value over the ranks of `group`, whose tensors are on
// `device`. Collective: every rank gives as many values.
absl::StatusOr<std::vector<double>> MaxOverRanks(std::vector<double> values,
                                                 ProcessGroup* group,
                                                 c10::Device device);

}  // namespace tessera

#endif  // BENCH_MEASURE_TIMING_H_
