#include <utility>

#include "absl/time/clock.h"
#include "framework/cuda/cuda_build.h"
#include "framework/observe/trace/activity_source.h"

namespace tessera {
namespace {

class HostActivitySource : public ActivitySource {
 public:
  explicit HostActivitySource(int64_t max_records)
      : max_records_(max_records) {}

  absl::Status Start() override { return {}; }

  absl::Status Stop(Trace* trace) override {
    for (size_t i = 0; i < trace->ranges.size(); ++i) {
      const HostRange& range = trace->ranges[i];
      if (range.level != HostRange::Level::kOp) continue;
      const size_t records = trace->calls.size() + trace->activities.size();
      if (static_cast<int64_t>(records) + 2 > max_records_) {
        trace->dropped += 2;
        continue;
      }
      // As if each op were one launch, so that analyses find its range.
      const auto correlation = static_cast<uint32_t>(i + 1);
      trace->calls.push_back({.name = range.name,
                              .begin_ns = range.begin_ns,
                              .end_ns = range.end_ns,
                              .thread = trace->thread,
                              .correlation = correlation});
      trace->activities.push_back({.name = range.name,
                                   .begin_ns = range.begin_ns,
                                   .end_ns = range.end_ns,
                                   .correlation = correlation});
    }
    return absl::OkStatus();
  }

  int64_t NowNs() const override { return absl::GetCurrentTimeNanos(); }

 private:
  const int64_t max_records_;
};

}  // namespace

std::unique_ptr<ActivitySource> HostActivities(int64_t max_records) {
  return std::make_unique<HostActivitySource>(max_records);
}

std::unique_ptr<ActivitySource> ActivitiesOf(c10::Device device,
                                             int64_t max_records) {
  if constexpr (kCudaBuild) {
    if (device.is_cuda()) return CuptiActivities(max_records);
  }
  return HostActivities(max_records);
}

}  // namespace tessera
