#include "framework/observe/memory/memory_recorder.h"

#include <ATen/ATen.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "framework/cuda/device.h"
#include "framework/observe/memory_record_json.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

int64_t Of(const MemoryBreakdown& breakdown, MemoryCategory category) {
  return breakdown.bytes[static_cast<size_t>(category)];
}

// The parameter: whether it is a GPU's memory.
class MemoryRecorderTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam()) return;
    if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
    const auto info = OpenCudaDevice(0);
    ASSERT_TRUE(info.ok()) << info.status();
    device_ = info->device;
  }

  at::Tensor MiB(int64_t mib) const {
    return at::empty({mib * kMiB}, at::dtype(at::kByte).device(device_));
  }

  // A step of `recorder` with an activation, a workspace and a gradient.
  void Step(MemoryRecorder& recorder, int64_t step) const {
    PhaseObserver* const phases = recorder.phases();
    const StepScope scope(phases, step);
    at::Tensor activation, gradient;
    {
      const PhaseScope forward(phases, "forward");
      const PhaseScope block(phases, "block_0");
      const OpScope op(phases, "qkv", OpResults::kActivations);
      activation = MiB(64);
      MiB(32);
    }
    const PhaseScope backward(phases, "backward");
    const PhaseScope block(phases, "block_0");
    {
      const OpScope op(phases, "qkv", OpResults::kGradients);
      gradient = MiB(128);
      activation.reset();
    }
    const OpScope op(phases, "embedding");
    gradient.reset();
  }

  static MemoryRecord Record(MemoryRecorder& recorder) {
    StepRecord record;
    EXPECT_TRUE(recorder.AddTo(&record).ok());
    EXPECT_TRUE(record.memory.has_value());
    return record.memory.value_or(MemoryRecord());
  }

  at::Device device_ = at::kCPU;
};

TEST_P(MemoryRecorderTest, CategoriesAddUpToTheAllocatorsCount) {
  // Older than the recorder, which on a CPU does not see what it is not told.
  const at::Tensor before = MiB(256), parameters = MiB(512);
  const auto recorder = CreateMemoryRecorder(device_);
  const at::Tensor other = MiB(32);
  recorder->Own(MemoryCategory::kParameters, parameters);
  Step(*recorder, 1);
  ResetPeakMemory(device_);
  Step(*recorder, 2);
  const MemoryUse use = GetParam() ? CurrentMemory(device_)
                                   : MemoryUse{.allocated = 544 * kMiB,
                                               .peak_allocated = 736 * kMiB,
                                               .reserved = 736 * kMiB};
  const MemoryRecord record = Record(*recorder);
  SCOPED_TRACE(absl::StrCat("allocated ", use.allocated, ", peak ",
                            use.peak_allocated, ", reserved ", use.reserved,
                            "; ", ToJson(record).dump(2)));

  EXPECT_EQ(record.peak_in, "backward/block_0/qkv");
  EXPECT_NEAR(record.peak.allocated, use.peak_allocated,
              0.01 * use.peak_allocated);
  EXPECT_NEAR(record.peak.slack(), 0, 0.01 * use.peak_allocated);
  EXPECT_EQ(record.peak.reserved, use.reserved);
  EXPECT_EQ(Of(record.peak, MemoryCategory::kParameters), 512 * kMiB);
  EXPECT_EQ(Of(record.peak, MemoryCategory::kActivations), 64 * kMiB);
  EXPECT_EQ(Of(record.peak, MemoryCategory::kActivationGradients), 128 * kMiB);
  EXPECT_EQ(Of(record.peak, MemoryCategory::kWorkspace), 0);
  // Other tests of the process may hold something, too.
  EXPECT_GE(Of(record.peak, MemoryCategory::kOther),
            ((GetParam() ? 256 : 0) + 32) * kMiB);

  EXPECT_EQ(record.end.allocated, use.allocated);
  EXPECT_EQ(record.end.reserved, GetParam() ? use.reserved : use.allocated);
  EXPECT_NEAR(record.end.slack(), 0, 0.01 * use.allocated);
  EXPECT_EQ(Of(record.end, MemoryCategory::kActivations), 0);

  ASSERT_EQ(record.phases.size(), 2u);
  EXPECT_NEAR(record.phases[0].peak - record.phases[0].allocated, 32 * kMiB,
              kMiB);
  ASSERT_EQ(record.saved.size(), 1u);
  EXPECT_EQ(record.saved[0].block, "block_0");
  ASSERT_EQ(record.saved[0].ops.size(), 1u);
  EXPECT_EQ(record.saved[0].ops[0].op, "qkv");
  EXPECT_EQ(record.saved[0].ops[0].bytes, 64 * kMiB);
  ASSERT_EQ(record.largest.size(), 3u);
  EXPECT_EQ(record.largest[0].bytes, 128 * kMiB);
  EXPECT_EQ(record.largest[0].to, "backward/block_0/embedding");
  EXPECT_EQ(record.largest[2].category, MemoryCategory::kWorkspace);
  // Before the step, three allocations and their ends.
  EXPECT_EQ(record.timeline.points.size(), 7u);
  EXPECT_TRUE(Record(*recorder).timeline.points.empty());
}

TEST_P(MemoryRecorderTest, AnotherRecorderStartsAgain) {
  CreateMemoryRecorder(device_).reset();
  const at::Tensor unseen = MiB(512);
  const auto recorder = CreateMemoryRecorder(device_, {.most_largest = 2});
  Step(*recorder, 1);
  const MemoryRecord record = Record(*recorder);
  SCOPED_TRACE(ToJson(record).dump(2));
  if (GetParam()) {
    EXPECT_GE(Of(record.end, MemoryCategory::kOther), 512 * kMiB);
  } else {
    EXPECT_EQ(record.end.allocated, 0);
  }
  EXPECT_NEAR(record.end.slack(), 0, 0.01 * record.end.allocated);
  EXPECT_EQ(record.largest.size(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Cpu, MemoryRecorderTest, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Gpu, MemoryRecorderTest, testing::Values(true));

}  // namespace
}  // namespace tessera
