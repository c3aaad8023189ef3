#include "bench/measure/allocation_figures.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "framework/observe/memory/memory_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"
#include "trainers/run/instruments.h"

namespace tessera {
namespace {

using testing::UnorderedElementsAre;
using Json = nlohmann::ordered_json;

constexpr int64_t kMiB = 1048576;

// The memory of the second step of a toy session.
struct RecordedStep {
  explicit RecordedStep(const std::vector<std::string>& sets) {
    const std::unique_ptr<MemoryRecorder> recorder = CreateMemoryRecorder(
        c10::kCPU, {.most_largest = std::numeric_limits<size_t>::max()});
    session =
        Toy("configs/tiny_cpu.pbtxt", sets, {.phases = recorder->phases()});
    NameBuffers(*session, recorder.get());
    for (int64_t step = 0; step < 2; ++step) {
      const auto batch = session->train_loader().Load(0);
      EXPECT_TRUE(batch.ok()) << batch.status();
      const StepScope scope(recorder->phases(), step + 1);
      EXPECT_TRUE(session->step().Run(*batch, 1e-3).ok());
    }
    StepRecord step;
    EXPECT_TRUE(recorder->AddTo(&step).ok());
    record = *step.memory;
  }

  Json Figures() const {
    return AllocationFigures(
        record, session->plan(),
        static_cast<int64_t>(session->state().optimizer->exp_avg().nbytes()));
  }

  std::unique_ptr<Session> session;
  MemoryRecord record;
};

std::vector<std::string> Keys(const Json& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

class SavedFiguresTest : public testing::TestWithParam<const char*> {};

TEST_P(SavedFiguresTest, AreThoseOfThePlanByOp) {
  const RecordedStep step(
      {"training.micro_batches=2", GetParam(), "attention.backend=NAIVE"});
  const Json saved = SavedFigures(step.record, step.session->plan());
  SCOPED_TRACE(saved.dump(1));
  EXPECT_GT(saved["mib"], 0);
  EXPECT_EQ(saved["mib"], saved["planned_mib"]);
  EXPECT_GT(saved["block_mib"], 0);
  EXPECT_EQ(saved["block_mib"], saved["planned_block_mib"]);
  double sum = 0;
  for (const Json& op : saved["ops"]) {
    EXPECT_EQ(op["mib"], op["planned_mib"]);
    sum += op["mib"].get<double>() *
           (op["op"].get<std::string>().find('/') != std::string::npos &&
                    op["op"].get<std::string>().rfind("head", 0) != 0
                ? static_cast<double>(step.session->plan().shape.layers)
                : 1);
  }
  EXPECT_NEAR(sum, saved["mib"].get<double>(), 1e-9);
}

INSTANTIATE_TEST_SUITE_P(
    All, SavedFiguresTest,
    testing::Values("precision.mode=FP32", "precision.mode=BF16",
                    "recompute.policy=BLOCK", "recompute.policy=FFN",
                    // Most activations lie in the gradient buffer.
                    "training.micro_batches=1"),
    [](const auto& info) {
      std::string name = info.param;
      for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
      return name;
    });

TEST(ResidualFiguresTest, TheEmbeddingWritesOneTensor) {
  for (const char* const mode : {"FP32", "BF16", "BF16_PURE"}) {
    const RecordedStep step(
        {"training.micro_batches=2", std::string("precision.mode=") + mode});
    const Json residual = ResidualFigures(step.record, step.session->plan());
    EXPECT_GT(residual["mib"], 0) << mode;
    EXPECT_EQ(residual["mib"], residual["formula_mib"]) << mode;
  }
}

TEST(AllocationFiguresTest, EveryPartOfAStep) {
  const RecordedStep step({"training.micro_batches=2", "precision.mode=BF16",
                           "attention.backend=NAIVE",
                           "execution.fuse.head_loss=false"});
  const Json figures = step.Figures();
  SCOPED_TRACE(figures.dump(1));
  EXPECT_THAT(
      Keys(figures["parts"]),
      UnorderedElementsAre("embedding", "norm", "residual_and_norm",
                           "attention_in", "scores", "softmax", "attention_out",
                           "ffn", "logits", "activation_gradients",
                           "parameters", "gradients", "optimizer"));
  const RunPlan& plan = step.session->plan();
  const int64_t scores = plan.micro_batch * plan.shape.heads *
                         plan.shape.context * plan.shape.context *
                         c10::elementSize(plan.precision[OpClass::kAttention]);
  EXPECT_EQ(figures["parts"]["scores"], static_cast<double>(scores) / kMiB);
  const double parameters = figures["parts"]["parameters"];
  EXPECT_EQ(figures["parts"]["optimizer"], parameters);
  EXPECT_EQ(figures["largest"].size(), 10u);
}

TEST(AllocationFiguresTest, ScoresOfGroupedHeads) {
  const RecordedStep step({"training.micro_batches=2", "model.num_kv_heads=1",
                           "model.context_length=64",
                           "attention.backend=COMPILED_FUSED"});
  const Json figures = step.Figures();
  SCOPED_TRACE(figures.dump(1));
  const RunPlan& plan = step.session->plan();
  const auto tokens =
      static_cast<double>(plan.micro_batch * plan.shape.context);
  EXPECT_EQ(figures["parts"]["scores"],
            tokens * plan.shape.heads * plan.shape.context * 4 / kMiB);
  EXPECT_EQ(figures["parts"]["attention_out"],
            tokens * plan.shape.d_model * 4 / kMiB);
}

TEST(AllocationFiguresTest, AdditionsAndNormsMayBeApart) {
  const RecordedStep step({"training.micro_batches=2", "precision.mode=BF16",
                           "execution.fuse.residual_norm=false"});
  const std::vector<std::string> parts = Keys(step.Figures()["parts"]);
  EXPECT_THAT(parts, ::testing::Contains("residual"));
  EXPECT_THAT(parts, ::testing::Not(::testing::Contains("residual_and_norm")));
}

TEST(AllocationFiguresTest, BlocksAreOneLine) {
  MemoryRecord record;
  record.largest = {
      {.bytes = 4 * kMiB,
       .category = MemoryCategory::kWorkspace,
       .from = "forward/block_1/attention/attention/scores",
       .to = "forward/block_1/attention/attention",
       .at_ms = 2,
       .ms = 1},
      {.bytes = 2 * kMiB, .from = "forward/block_0/ffn/w13", .ms = 7},
      {.bytes = 2 * kMiB, .from = "forward/block_1/ffn/w13", .ms = 5},
      {.bytes = 1 * kMiB, .from = "forward/block_1/ffn/w13"},
      {.bytes = kMiB / 2,
       .category = MemoryCategory::kActivationGradients,
       .from = "backward/block_1/ffn/w13"}};
  const auto plan = PlanRun(ToyConfig("configs/tiny_cpu.pbtxt"), WorldInfo());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Json figures = AllocationFigures(record, *plan, 0);
  EXPECT_EQ(
      figures["parts"],
      Json({{"activation_gradients", 0.5}, {"ffn", 2.0}, {"scores", 4.0}}));
  ASSERT_EQ(figures["largest"].size(), 4u);
  EXPECT_EQ(figures["largest"][0],
            Json({{"mib", 4.0},
                  {"count", 1},
                  {"category", "workspace"},
                  {"from", "forward/block_*/attention/attention/scores"},
                  {"to", "forward/block_*/attention/attention"},
                  {"at_ms", 2.0},
                  {"ms", 1.0}}));
  EXPECT_EQ(figures["largest"][1]["count"], 2);
  EXPECT_EQ(figures["largest"][1]["ms"], 7);
  EXPECT_EQ(figures["largest"][1]["to"], "-");
}

}  // namespace
}  // namespace tessera
