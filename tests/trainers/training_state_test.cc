#include "trainers/training_state.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"

namespace tessera {
namespace {

// Its embedding and its head are of 17 MiB each: what comes from a GPU does so
// in more than one piece.
std::unique_ptr<Session> LargeVocabulary(const std::string& device) {
  return Toy("configs/tiny_cpu.pbtxt",
             {"model.vocab_size=140001", "training.device=" + device});
}

// Elements of `slice` that `file` holds otherwise under `prefix` and its name;
// all of them where it is missing or has another shape.
int64_t Differing(const SafetensorsFile& file, const std::string& prefix,
                  const ParameterSlice& slice, const at::Tensor& buffer) {
  const TensorEntry* entry = file.Find(absl::StrCat(prefix, slice.name));
  if (entry == nullptr || entry->spec.shape != slice.shape) return slice.numel;
  const absl::string_view bytes = file.Bytes(*entry);
  const at::Tensor stored =
      at::from_blob(const_cast<char*>(bytes.data()), {slice.numel}, at::kFloat);
  return stored.ne(buffer.narrow(0, slice.offset, slice.numel).cpu())
      .sum()
      .item<int64_t>();
}

class TrainingStateTest : public testing::TestWithParam<std::string> {};

TEST_P(TrainingStateTest, EveryTensorIsStoredAndComesBackAsItIs) {
  if (GetParam() == "CUDA" && !at::hasCUDA()) {
    GTEST_SKIP() << "needs a CUDA GPU";
  }
  const auto session = LargeVocabulary(GetParam());
  Train(*session, 2);
  const TrainingState& state = session->state();
  const auto draw = [&] {
    return at::rand({8}, state.parameters->master().options());
  };
  draw();  // the generator is no longer where a fresh session has it
  // Shards of one program may run side by side.
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/training_state_", getpid());
  ASSERT_TRUE(RemoveTree(folder).ok());
  auto writer = CheckpointWriter::Begin(folder, 2).value();
  const absl::Status added = AddTensors(state, writer.get());
  ASSERT_TRUE(added.ok()) << added;
  const std::string saved = writer->Commit(ExportState(state), "").value();
  const at::Tensor drawn = draw();

  const auto checkpoint = Checkpoint::Open(saved).value();
  const SafetensorsFile& model = *checkpoint->Tensors(kModelFile).value();
  const SafetensorsFile& moments = *checkpoint->Tensors(kOptimizerFile).value();
  for (const ParameterSlice& slice : state.parameters->slices()) {
    EXPECT_EQ(Differing(model, "", slice, state.parameters->master()), 0)
        << slice.name;
    EXPECT_EQ(Differing(moments, "exp_avg.", slice, state.optimizer->exp_avg()),
              0)
        << slice.name;
    EXPECT_EQ(
        Differing(moments, "exp_avg_sq.", slice, state.optimizer->exp_avg_sq()),
        0)
        << slice.name;
  }

  const auto fresh = LargeVocabulary(GetParam());
  const absl::Status restored = Restore(*checkpoint, fresh->state());
  ASSERT_TRUE(restored.ok()) << restored;
  EXPECT_TRUE(at::equal(fresh->state().parameters->master(),
                        state.parameters->master()));
  EXPECT_TRUE(at::equal(fresh->state().optimizer->exp_avg(),
                        state.optimizer->exp_avg()));
  EXPECT_TRUE(at::equal(fresh->state().optimizer->exp_avg_sq(),
                        state.optimizer->exp_avg_sq()));
  EXPECT_EQ(fresh->state().optimizer->step().item<int64_t>(), 2);
  EXPECT_TRUE(at::equal(draw(), drawn));
  ASSERT_TRUE(RemoveTree(folder).ok());
}

TEST(RestoreTest, RestoredWeightsAreThoseThatProductsRead) {
  const std::vector<std::string> bf16 = {"precision.mode=BF16"};
  const auto trained = Toy("configs/tiny_cpu.pbtxt", bf16);
  Train(*trained, 2);
  const auto fresh = Toy("configs/tiny_cpu.pbtxt", bf16);
  ResumeFrom(*trained, 2, *fresh);
  const ParameterStore& store = *fresh->state().parameters;
  ASSERT_TRUE(store.shadow().defined());
  EXPECT_TRUE(at::equal(store.shadow(), store.master().to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(store.shadow(), trained->state().parameters->shadow()));
}

INSTANTIATE_TEST_SUITE_P(Cpu, TrainingStateTest, testing::Values("CPU"));
INSTANTIATE_TEST_SUITE_P(Gpu, TrainingStateTest, testing::Values("CUDA"));

}  // namespace
}  // namespace tessera
