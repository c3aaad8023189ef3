#include "trainers/run/batch_prefetcher.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/error_budget.h"
#include "tests/trainers/toy_session.h"

namespace tessera {
namespace {

using testing::BitEqual;

void ExpectSame(const Batch& batch, const Batch& expected) {
  EXPECT_TRUE(BitEqual(batch.ids_mbs.cpu(), expected.ids_mbs));
  EXPECT_TRUE(BitEqual(batch.targets_mbs.cpu(), expected.targets_mbs));
  ASSERT_EQ(batch.positions_mbs.defined(), expected.positions_mbs.defined());
  if (expected.positions_mbs.defined()) {
    EXPECT_TRUE(BitEqual(batch.positions_mbs.cpu(), expected.positions_mbs));
  }
  EXPECT_EQ(batch.valid_targets, expected.valid_targets);
}

class BatchPrefetcherTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "CUDA" && !at::hasCUDA()) {
      GTEST_SKIP() << "needs a CUDA GPU";
    }
    session_ = MakeSession({});
  }
  static std::unique_ptr<Session> MakeSession(std::vector<std::string> sets) {
    sets.insert(sets.end(),
                {absl::StrCat("training.device=", GetParam()),
                 "training.batch_size=4", "training.micro_batches=2"});
    return Toy("configs/tiny_cpu.pbtxt", sets);
  }
  const BatchLoader& loader() const { return session_->train_loader(); }
  at::Device device() const { return session_->plan().device.device; }

  std::unique_ptr<Session> session_;
};

TEST_P(BatchPrefetcherTest, HasTheBatchesOfTheLoader) {
  BatchPrefetcher prefetcher(&loader(), device());
  // In order, then elsewhere, as after a resume.
  for (const int64_t sample : {0, 4, 8, 12, 16, 40, 44, 4, 8}) {
    const absl::StatusOr<Batch> batch = prefetcher.Next(sample);
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_EQ(batch->ids_mbs.device(), device());
    ExpectSame(*batch, loader().Load(sample).value());
  }
}

TEST_P(BatchPrefetcherTest, HasThePositionsOfSeparateDocuments) {
  EXPECT_FALSE(loader().Load(0)->positions_mbs.defined());
  session_ = MakeSession(
      {"data.documents=SEPARATE", "data.synthetic.document_tokens=5"});
  BatchPrefetcher prefetcher(&loader(), device());
  for (const int64_t sample : {0, 4, 8, 40}) {
    const absl::StatusOr<Batch> batch = prefetcher.Next(sample);
    ASSERT_TRUE(batch.ok()) << batch.status();
    ASSERT_EQ(batch->positions_mbs.sizes(), batch->ids_mbs.sizes());
    EXPECT_EQ(batch->positions_mbs.device(), device());
    ExpectSame(*batch, loader().Load(sample).value());
  }
}

// Many steps are enqueued before the first of them runs.
TEST_P(BatchPrefetcherTest, ABatchIsNotOverwrittenBeforeItIsRead) {
  BatchPrefetcher prefetcher(&loader(), device());
  const at::Tensor work = at::randn({2048, 2048}, at::device(device()));
  std::vector<Batch> read;
  for (int64_t sample = 0; sample < 80; sample += 4) {
    if (device().is_cuda()) {
      for (int i = 0; i < 10; ++i) at::mm(work, work);
    }
    const absl::StatusOr<Batch> batch = prefetcher.Next(sample);
    ASSERT_TRUE(batch.ok()) << batch.status();
    read.push_back({.ids_mbs = batch->ids_mbs.clone(),
                    .targets_mbs = batch->targets_mbs.clone(),
                    .valid_targets = batch->valid_targets});
  }
  for (size_t i = 0; i < read.size(); ++i) {
    ExpectSame(read[i], loader().Load(static_cast<int64_t>(i) * 4).value());
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, BatchPrefetcherTest, ::testing::Values("CPU"));
INSTANTIATE_TEST_SUITE_P(Gpu, BatchPrefetcherTest, ::testing::Values("CUDA"));

}  // namespace
}  // namespace tessera
