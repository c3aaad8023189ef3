#include "tests/trainers/toy_session.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/checkpoint/checkpoint.h"
#include "gtest/gtest.h"
#include "trainers/config/config_loader.h"
#include "trainers/run/training_state.h"

namespace tessera {
namespace {

std::vector<std::string> ToySized() {
  return {"model.vocab_size=61",
          "model.num_layers=2",
          "model.d_model=32",
          "model.num_heads=2",
          "model.d_ff=40",
          "model.context_length=9",
          "data.synthetic.successors=3",
          "training.device=CPU",
          "training.batch_size=4",
          "training.steps=20",
          "training.eval_batches=1",
          "optimizer.schedule.warmup_steps=1"};
}

}  // namespace

KeepDeterminism::KeepDeterminism()
    : before_(at::globalContext().deterministicAlgorithms()) {}

KeepDeterminism::~KeepDeterminism() {
  at::globalContext().setDeterministicAlgorithms(before_, /*warn_only=*/false);
}

RunConfig ToyConfig(const std::string& config,
                    const std::vector<std::string>& more) {
  std::vector<std::string> sets = ToySized();
  sets.insert(sets.end(), more.begin(), more.end());
  auto loaded = LoadRunConfig({config}, sets);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return *std::move(loaded);
}

RunConfig GpuSizedConfig(const std::vector<std::string>& more) {
  std::vector<std::string> sets = {
      "training.device=CUDA",    "training.batch_size=16",
      "training.eval_batches=0", "training.sample_tokens_at_end=0",
      "precision.mode=BF16",     "model.num_layers=4",
      "model.d_model=1024",      "model.num_heads=8",
      "model.d_ff=2816",         "model.context_length=512"};
  sets.insert(sets.end(), more.begin(), more.end());
  return ToyConfig("configs/tiny_cpu.pbtxt", sets);
}

std::unique_ptr<Session> Toy(const std::string& config,
                             const std::vector<std::string>& more,
                             const SessionOptions& options) {
  auto session = Session::Create(ToyConfig(config, more), options);
  EXPECT_TRUE(session.ok()) << session.status();
  return *std::move(session);
}

std::vector<double> Train(Session& session, TrainStep& step, int64_t first,
                          int64_t steps, double lr) {
  std::vector<double> losses;
  for (int64_t i = first; i < first + steps; ++i) {
    const auto batch =
        session.train_loader().Load(i * session.train_loader().global_batch());
    EXPECT_TRUE(batch.ok()) << batch.status();
    const absl::Status status = step.Run(*batch, lr);
    EXPECT_TRUE(status.ok()) << status;
    losses.push_back(step.metrics().loss.item<double>());
  }
  const absl::Status status = step.Flush();
  EXPECT_TRUE(status.ok()) << status;
  return losses;
}

std::vector<double> Train(Session& session, int64_t steps) {
  return Train(session, session.step(), 0, steps);
}

void SpoilAWeight(ParameterStore& store) {
  for (const ParameterSlice& slice : store.slices()) {
    if (slice.name == "layers.1.ffn.w2.weight") {
      store.Write(slice, 5, at::full({1}, NAN));
    }
  }
}

absl::Status AddState(const TrainingState& state, CheckpointWriter* writer) {
  const absl::StatusOr<StateFiles> files = ShareState(state);
  if (!files.ok()) return files.status();
  absl::Status added = AddTensors(state, *files, BuffersOf(state), writer);
  added.Update(AddIndices(*files, writer));
  return added;
}

void ResumeFrom(Session& from, int64_t step, Session& to) {
  // Shards of one program may run at the same time.
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/toy_checkpoints_", getpid());
  ASSERT_TRUE(RemoveTree(folder).ok());
  auto writer = CheckpointWriter::Begin(folder, step).value();
  ASSERT_TRUE(AddState(from.state(), writer.get()).ok());
  const std::string saved =
      writer->Commit(ExportState(from.state()), "").value();
  const absl::Status restored =
      Restore(*Checkpoint::Open(saved).value(), to.state());
  ASSERT_TRUE(restored.ok()) << restored;
}

}  // namespace tessera
