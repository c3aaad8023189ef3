#include "framework/observe/memory/snapshot_writer.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::Not;

class GpuSnapshotWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
    const auto info = OpenCudaDevice(0);
    ASSERT_TRUE(info.ok()) << info.status();
    device_ = info->device;
    ASSERT_TRUE(RemoveTree(folder_).ok());
    ASSERT_TRUE(MakeDirectories(folder_).ok());
  }

  std::unique_ptr<SnapshotWriter> Writer(const SnapshotOptions& options) const {
    auto writer = CreateSnapshotWriter(options);
    EXPECT_TRUE(writer->OnTrainStart({.run_folder = folder_}).ok());
    return writer;
  }

  at::Tensor Bytes(int64_t bytes) const {
    return at::empty({bytes}, at::dtype(at::kByte).device(device_));
  }

  at::Device device_ = at::kCPU;
  const std::string folder_ =
      absl::StrCat(testing::TempDir(), "/snapshot_writer_", getpid());
};

// memory_snapshot_test.py reads the format.
TEST_F(GpuSnapshotWriterTest, WritesTheStepThatWasAskedFor) {
  const auto writer = Writer({.history = true, .at_step = 2});
  ASSERT_NE(writer->phases(), nullptr);
  at::Tensor kept;
  for (int64_t step = 1; step <= 3; ++step) {
    const StepScope scope(writer->phases(), step);
    const PhaseScope phase(writer->phases(), "the_phase");
    const OpScope op(writer->phases(), "the_op");
    kept = Bytes(1'234'567);
    ASSERT_TRUE(writer->OnStepEnd(step).ok());
  }
  const auto names = ListDirectory(folder_);
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, testing::ElementsAre("memory_snapshot_step_2.pickle"));
  const auto pickle = ReadFile(folder_ + "/memory_snapshot_step_2.pickle");
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  EXPECT_EQ(pickle->substr(0, 2), "\x80\x02");
  EXPECT_EQ(pickle->back(), '.');
  for (const char* text : {"segments", "device_traces", "active_allocated",
                           "free_requested", "the_phase", "the_op"}) {
    EXPECT_THAT(*pickle, HasSubstr(text));
  }
  EXPECT_EQ(writer->out_of_memory_file(), "");
}

TEST_F(GpuSnapshotWriterTest, WritesWhatIsHeldWhenMemoryRunsOut) {
  const auto writer = Writer({.on_out_of_memory = true, .rank = 3});
  EXPECT_EQ(writer->phases(), nullptr);
  const at::Tensor held = Bytes(3 << 20);
  const absl::Status status = StatusFromTorch([&] { Bytes(int64_t{1} << 50); });
  ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(writer->out_of_memory_file(),
            folder_ + "/out_of_memory_rank_3.pickle");
  const auto pickle = ReadFile(writer->out_of_memory_file());
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  EXPECT_THAT(*pickle, HasSubstr("active_allocated"));
  EXPECT_THAT(*pickle, Not(HasSubstr("free_requested")));
}

TEST_F(GpuSnapshotWriterTest, DoesNothingAfterItsEnd) {
  Writer({.history = true, .on_out_of_memory = true}).reset();
  EXPECT_FALSE(StatusFromTorch([&] { Bytes(int64_t{1} << 50); }).ok());
  EXPECT_THAT(ListDirectory(folder_).value(), testing::IsEmpty());
}

TEST_F(GpuSnapshotWriterTest, AFileThatCannotBeWrittenIsOnlyAWarning) {
  const auto writer =
      Writer({.history = true, .at_step = 1, .on_out_of_memory = true});
  ASSERT_TRUE(RemoveTree(folder_).ok());
  EXPECT_TRUE(writer->OnStepEnd(1).ok());
  const absl::Status status = StatusFromTorch([&] { Bytes(int64_t{1} << 50); });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(writer->out_of_memory_file(), "");
}

}  // namespace
}  // namespace tessera
