#include "framework/observe/gpu_counters.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "framework/base/monotonic_clock.h"
#include "framework/cuda/device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Optional;

// A GPU at a clock of its own. It draws 500 W in steps and 100 W otherwise, and
// its tensor cores are busy for 80 % of a step.
struct FakeGpu {
  absl::Time now = absl::UnixEpoch();
  double joules = 1000, tensor_seconds = 0;
  double sm_mhz = 1500;
  std::vector<std::string> throttle_reasons;
  absl::Status clock_status, energy_status, utilization_status;
  absl::Time interval_begin;
  double interval_tensor_seconds = 0;
  int intervals = 0;  // started
  absl::Notification answers;
  bool hangs = false;  // until `answers`

  void Work(absl::Duration time) { Pass(time, 500, 0.8); }
  void Rest(absl::Duration time) { Pass(time, 100, 0); }

 private:
  void Pass(absl::Duration time, double watts, double tensor) {
    now += time;
    joules += watts * absl::ToDoubleSeconds(time);
    tensor_seconds += tensor * absl::ToDoubleSeconds(time);
  }
};

class FakeSensors : public GpuSensors {
 public:
  explicit FakeSensors(FakeGpu* gpu) : gpu_(gpu) {}

  absl::StatusOr<double> SmMhz() override {
    if (!gpu_->clock_status.ok()) return gpu_->clock_status;
    return gpu_->sm_mhz;
  }
  absl::StatusOr<double> MemoryMhz() override { return 3201.0; }
  absl::StatusOr<double> Celsius() override { return 61.0; }
  absl::StatusOr<std::vector<std::string>> ThrottleReasons() override {
    return gpu_->throttle_reasons;
  }
  absl::StatusOr<double> MaxSmMhz() override { return 2000.0; }
  absl::StatusOr<double> EnergyJoules() override {
    if (!gpu_->energy_status.ok()) return gpu_->energy_status;
    return gpu_->joules;
  }
  absl::Status StartInterval() override {
    if (gpu_->hangs) gpu_->answers.WaitForNotification();
    ++gpu_->intervals;
    gpu_->interval_begin = gpu_->now;
    gpu_->interval_tensor_seconds = gpu_->tensor_seconds;
    return gpu_->utilization_status;
  }
  absl::StatusOr<GpuUtilization> Utilization() override {
    const absl::Duration time = gpu_->now - gpu_->interval_begin;
    EXPECT_GE(time, absl::Milliseconds(100));
    const double tensor =
        100 * (gpu_->tensor_seconds - gpu_->interval_tensor_seconds) /
        absl::ToDoubleSeconds(time);
    gpu_->interval_begin = gpu_->now;
    gpu_->interval_tensor_seconds = gpu_->tensor_seconds;
    return GpuUtilization{.sm = 99, .tensor = tensor, .dram = 40};
  }

 private:
  FakeGpu* const gpu_;
};

class CounterReaderTest : public testing::Test {
 protected:
  GpuCounterReader& Reader(GpuCounterOptions options = {},
                           bool use_thread = false) {
    options.use_thread = use_thread;
    options.clock = [this] { return gpu_.now; };
    reader_ = std::make_unique<GpuCounterReader>(
        std::make_unique<FakeSensors>(&gpu_), std::move(options));
    return *reader_;
  }

  void Steps(int count, absl::Duration time) {
    for (int i = 0; i < count; ++i) {
      const StepScope scope(reader_.get(), i + 1);
      gpu_.Work(time);
    }
  }

  // After steps of `time` with 1,000 tokens each.
  std::optional<GpuCounters> Record(absl::Duration time, int64_t step = 0) {
    StepRecord record{.step = step,
                      .step_ms = absl::ToDoubleMilliseconds(time),
                      .tokens_per_s = 1000 / absl::ToDoubleSeconds(time),
                      .mfu = 0.3};
    EXPECT_TRUE(reader_->AddTo(&record).ok());
    return record.gpu;
  }

  FakeGpu gpu_;
  std::unique_ptr<GpuCounterReader> reader_;
};

constexpr absl::Duration kStep = absl::Milliseconds(200);

TEST_F(CounterReaderTest, CountsWhatStepsTake) {
  EXPECT_EQ(Reader({.world_size = 2}).missing(), "");
  gpu_.throttle_reasons = {"power_cap"};
  Steps(10, kStep);
  const std::optional<GpuCounters> counters = Record(kStep);
  ASSERT_TRUE(counters.has_value());
  EXPECT_THAT(counters->sm_mhz, Optional(1500.0));
  EXPECT_THAT(counters->memory_mhz, Optional(3201.0));
  EXPECT_THAT(counters->celsius, Optional(61.0));
  EXPECT_THAT(counters->throttle_reasons, ElementsAre("power_cap"));
  EXPECT_THAT(counters->power_w, Optional(DoubleNear(500, 1e-6)));
  EXPECT_THAT(counters->joules_per_step, Optional(DoubleNear(100, 1e-6)));
  // Two ranks share the 1,000 tokens of a step.
  EXPECT_THAT(counters->joules_per_token, Optional(DoubleNear(0.2, 1e-9)));
  EXPECT_THAT(counters->sm_percent, Optional(DoubleNear(99, 1e-6)));
  EXPECT_THAT(counters->tensor_percent, Optional(DoubleNear(80, 1e-6)));
  EXPECT_THAT(counters->dram_percent, Optional(DoubleNear(40, 1e-6)));
  // Against the highest clock, 2,000 MHz.
  EXPECT_THAT(counters->mfu_at_clock, Optional(DoubleNear(0.4, 1e-9)));
}

TEST_F(CounterReaderTest, ThePeakMayHoldAtAnotherClock) {
  Reader({.peak_mhz = 1800});
  Steps(10, kStep);
  EXPECT_THAT(Record(kStep)->mfu_at_clock, Optional(DoubleNear(0.36, 1e-9)));
}

TEST_F(CounterReaderTest, LeavesOutWhatHappensBetweenSteps) {
  GpuCounterReader& reader = Reader();
  Steps(5, kStep);
  {
    const PhaseScope scope(&reader, "evaluation");
    gpu_.Rest(absl::Seconds(10));
  }
  gpu_.Rest(absl::Seconds(1));
  Steps(5, kStep);
  const std::optional<GpuCounters> counters = Record(kStep);
  EXPECT_THAT(counters->power_w, Optional(DoubleNear(500, 1e-6)));
  EXPECT_THAT(counters->joules_per_step, Optional(DoubleNear(100, 1e-6)));
  EXPECT_THAT(counters->tensor_percent, Optional(DoubleNear(80, 1e-6)));
}

// Writing the record took long.
TEST_F(CounterReaderTest, DropsAnIntervalWithAPause) {
  GpuCounterReader& reader = Reader();
  Steps(3, kStep);
  Record(kStep);
  gpu_.Rest(absl::Seconds(7));
  Steps(6, kStep);
  EXPECT_THAT(Record(kStep)->power_w, Optional(DoubleNear(500, 1e-6)));
  gpu_.Rest(absl::Seconds(7));
  { const PhaseScope scope(&reader, "checkpoint"); }
  EXPECT_EQ(Record(kStep)->power_w, std::nullopt);
}

TEST_F(CounterReaderTest, LeavesOutTheFirstStep) {
  GpuCounterReader& reader = Reader();
  {
    const StepScope scope(&reader, 1);
    gpu_.sm_mhz = 300;
    gpu_.Rest(absl::Seconds(3));
  }
  gpu_.sm_mhz = 1500;
  Steps(5, kStep);
  const std::optional<GpuCounters> counters = Record(kStep);
  EXPECT_THAT(counters->joules_per_step, Optional(DoubleNear(100, 1e-6)));
  EXPECT_THAT(counters->sm_mhz, Optional(1500.0));
}

TEST_F(CounterReaderTest, TheFirstStepCountsIfItIsTheOnlyOne) {
  Reader().OnTrainStart({.steps = 1}).IgnoreError();
  Steps(1, kStep);
  EXPECT_THAT(Record(kStep, 1)->power_w, Optional(DoubleNear(500, 1e-6)));
}

// Records every 40 ms have the figures of a second when it is over. One sample
// ends an interval and begins the next: the others are of the constructor and
// of the first two steps.
TEST_F(CounterReaderTest, AnIntervalTakesASecond) {
  Reader();
  constexpr absl::Duration kShort = absl::Milliseconds(40);
  std::vector<int> known;
  for (int step = 1; step <= 60; ++step) {
    Steps(1, kShort);
    const GpuCounters counters = Record(kShort).value_or(GpuCounters());
    if (!counters.power_w.has_value()) continue;
    known.push_back(step);
    EXPECT_THAT(counters.joules_per_step, Optional(DoubleNear(20, 1e-6)));
    EXPECT_THAT(counters.tensor_percent, Optional(DoubleNear(80, 1e-6)));
  }
  EXPECT_THAT(known, ElementsAre(26, 51));
  EXPECT_EQ(gpu_.intervals, 3);
}

TEST_F(CounterReaderTest, TheLastRecordEndsAnInterval) {
  Reader().OnTrainStart({.steps = 4}).IgnoreError();
  Steps(3, kStep);
  EXPECT_EQ(Record(kStep, 3)->power_w, std::nullopt);
  Steps(1, kStep);
  const std::optional<GpuCounters> counters = Record(kStep, 4);
  EXPECT_THAT(counters->power_w, Optional(DoubleNear(500, 1e-6)));
  EXPECT_THAT(counters->tensor_percent, Optional(DoubleNear(80, 1e-6)));
}

TEST_F(CounterReaderTest, OnlyTheLastRecordWaitsForSlowSensors) {
  Reader({}, /*use_thread=*/true).OnTrainStart({.steps = 2}).IgnoreError();
  gpu_.hangs = true;
  Steps(1, kStep);
  const absl::Time begin = MonotonicNow();
  EXPECT_FALSE(Record(kStep, 1).has_value());
  EXPECT_LT(MonotonicNow() - begin, absl::Milliseconds(500));
  Steps(1, kStep);
  gpu_.answers.Notify();
  const std::optional<GpuCounters> counters = Record(kStep, 2);
  ASSERT_TRUE(counters.has_value());
  EXPECT_THAT(counters->celsius, Optional(61.0));
}

TEST_F(CounterReaderTest, NoRecordWaitsForHangingSensors) {
  Reader({}, /*use_thread=*/true).OnTrainStart({.steps = 1}).IgnoreError();
  gpu_.hangs = true;
  Steps(1, kStep);
  EXPECT_FALSE(Record(kStep, 1).has_value());
  gpu_.answers.Notify();
}

TEST_F(CounterReaderTest, ReadsTheClockNoMoreThanTenTimesASecond) {
  Reader();
  for (int step = 0; step < 100; ++step) {
    gpu_.sm_mhz = step % 10 == 0 ? 1500 : 1;
    Steps(1, absl::Milliseconds(11));
  }
  EXPECT_THAT(Record(absl::Milliseconds(11))->sm_mhz, Optional(1500.0));
}

// The host may be done with all steps before the device is with the first.
TEST_F(CounterReaderTest, ReadsTheClockForTheRecord) {
  Reader();
  gpu_.sm_mhz = 2000;
  Steps(100, absl::Milliseconds(1));
  gpu_.Work(absl::Seconds(1));
  gpu_.sm_mhz = 1400;
  EXPECT_THAT(Record(absl::Milliseconds(11))->sm_mhz, Optional(1400.0));
}

TEST_F(CounterReaderTest, NamesWhatIsMissingAndLeavesItOut) {
  gpu_.clock_status = absl::UnavailableError("Insufficient Permissions");
  gpu_.energy_status = absl::UnavailableError("Not Supported");
  gpu_.utilization_status = absl::UnimplementedError("needs a Hopper GPU");
  EXPECT_EQ(Reader().missing(),
            "no SM clock (Insufficient Permissions), no power and energy (Not "
            "Supported), no utilization of SMs, tensor cores and memory (needs "
            "a Hopper GPU)");
  Steps(10, kStep);
  const StepRecord record{.gpu = Record(kStep)};
  ASSERT_TRUE(record.gpu.has_value());
  std::vector<std::string> names;
  for (const StepField& field : kGpuFields) {
    if (field.read(record).has_value()) names.push_back(field.name);
  }
  EXPECT_THAT(names, ElementsAre("memory_mhz", "celsius"));
}

TEST(NvmlTest, SaysWhyThereIsNone) {
  const auto sensors = OpenNvml("00000000-0000-0000-0000-000000000000");
  ASSERT_FALSE(sensors.ok());
  EXPECT_FALSE(sensors.status().message().empty());
}

std::string Describe(const GpuCounters& counters) {
  std::string text;
  for (const StepField& field : kGpuFields) {
    if (const auto value = field.read({.gpu = counters})) {
      absl::StrAppend(&text, field.name, " ", *value, "\n");
    }
  }
  return absl::StrCat(
      text, "throttled by: ", absl::StrJoin(counters.throttle_reasons, ", "));
}

// A second of BF16 products, which a GPU's power limits.
TEST(GpuCountersTest, LongProductsAreSeen) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const auto device = OpenCudaDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  auto sensors = OpenNvml(device->uuid);
  if (!sensors.ok()) GTEST_SKIP() << "NVML: " << sensors.status().message();
  const absl::StatusOr<double> joules_before = (*sensors)->EnergyJoules();
  GpuCounterReader reader(*std::move(sensors), {});
  const at::Tensor a =
      at::ones({8192, 8192}, at::dtype(at::kBFloat16).device(device->device));
  a.mm(a);
  Synchronize(device->device);
  constexpr int kSteps = 10;
  const absl::Time begin = MonotonicNow();
  for (int step = 1; step <= kSteps; ++step) {
    const StepScope scope(&reader, step);
    for (int i = 0; i < 50; ++i) a.mm(a);
  }
  Synchronize(device->device);
  const double seconds = absl::ToDoubleSeconds(MonotonicNow() - begin);
  reader.Finish();
  StepRecord record{.step_ms = seconds * 1e3 / kSteps,
                    .tokens_per_s = 1000 * kSteps / seconds,
                    .mfu = 0.5};
  ASSERT_TRUE(reader.AddTo(&record).ok());
  ASSERT_TRUE(record.gpu.has_value()) << reader.missing();
  const GpuCounters& counters = *record.gpu;
  SCOPED_TRACE(absl::StrCat(device->name, ", ", seconds, " s, missing: '",
                            reader.missing(), "'\n", Describe(counters)));
  EXPECT_GT(counters.sm_mhz.value_or(0), 200);
  EXPECT_GT(counters.mfu_at_clock.value_or(0), 0.49);
  EXPECT_GT(counters.power_w.value_or(0), 50);
  EXPECT_LT(counters.power_w.value_or(0), 1000);
  EXPECT_GT(counters.joules_per_token.value_or(0), 0);
  if (device->compute_capability >= 90) {
    EXPECT_GT(counters.sm_percent.value_or(0), 50);
    EXPECT_GT(counters.tensor_percent.value_or(0), 10);
    EXPECT_LE(counters.tensor_percent.value_or(0), 100);
  }
  auto again = OpenNvml(device->uuid);
  ASSERT_TRUE(again.ok()) << again.status();
  if (joules_before.ok()) {
    EXPECT_GT((*again)->EnergyJoules().value_or(0), *joules_before);
  }
}

}  // namespace
}  // namespace tessera
