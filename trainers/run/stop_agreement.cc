#include "trainers/run/stop_agreement.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "trainers/run/stop_signal.h"

namespace tessera {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(1);

}  // namespace

StopAgreement::StopAgreement(ProcessGroup* group, c10::Device device,
                             int64_t steps, Clock clock)
    : group_(group),
      device_(device),
      clock_(std::move(clock)),
      last_(steps),
      last_at_(clock_()) {}

absl::StatusOr<StopDecision> StopAgreement::Agree(int64_t steps,
                                                  const StopDecision& asked) {
  if (group_->world_size() == 1 || group_->backend() == "simulated") {
    return asked;
  }
  if (steps < next_) return StopDecision{};
  const absl::Time now = clock_();
  const double seconds_per_step = absl::ToDoubleSeconds(now - last_at_) /
                                  static_cast<double>(steps - last_);
  // The number of ranks that received each of kStopSignals, seconds_per_step,
  // and the number of ranks that ask to save.
  std::vector<double> mine;
  for (const int stop : kStopSignals) mine.push_back(asked.signo == stop);
  mine.push_back(seconds_per_step);
  mine.push_back(asked.save);
  at::Tensor sums;
  RETURN_IF_ERROR(StatusFromTorch([&] {
    sums = at::tensor(mine, at::kDouble).to(device_);
    ThrowIfError(group_->AllReduceSum(sums));
    sums = sums.cpu();
  }));
  const double* const sum = sums.const_data_ptr<double>();
  // All ranks have the same sums, and hence the same next exchange.
  const double wait = absl::ToDoubleSeconds(kInterval) * group_->world_size() /
                      sum[kStopSignals.size()];
  next_ = steps + std::max<int64_t>(1, static_cast<int64_t>(wait));
  last_ = steps;
  last_at_ = now;
  StopDecision agreed{.save = sum[kStopSignals.size() + 1] > 0};
  for (size_t i = 0; i < kStopSignals.size() && agreed.signo == 0; ++i) {
    if (sum[i] > 0) agreed.signo = kStopSignals[i];
  }
  return agreed;
}

}  // namespace tessera
