#include "bench/measure/utilisation.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"
#include "trainers/plan/step_rows.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using Json = nlohmann::ordered_json;

TEST(UtilisationTest, EachPieceOfWorkOnce) {
  const std::unique_ptr<Session> session =
      Toy("configs/tiny_cpu.pbtxt",
          {"precision.mode=BF16", "execution.fuse.head_loss=false"});
  const auto measured = MeasureUtilisation(*session);
  ASSERT_TRUE(measured.ok()) << measured.status();
  const Json& work = (*measured)["work"];
  std::vector<std::string> names;
  for (const Json& one : work) {
    names.push_back(one["work"]);
    EXPECT_GT(one["ms"], 0);
    EXPECT_GT(one["copy_pct"], 0);
    EXPECT_EQ(one.contains("tflops"), one["work"] != "copy of 16 MiB");
  }
  EXPECT_THAT(names, ElementsAre("GEMM 512^3", "copy of 16 MiB", "qkv forward",
                                 "qkv backward", "attention forward",
                                 "attention backward", "output_proj forward",
                                 "output_proj backward", "w13 forward",
                                 "w13 backward", "w2 forward", "w2 backward",
                                 "lm_head forward", "lm_head backward",
                                 "forward", "forward and backward", "step"));
  EXPECT_DOUBLE_EQ(work[0]["ceiling_pct"], 100);
  EXPECT_DOUBLE_EQ(work[1]["copy_pct"], 100);
}

TEST(UtilisationTest, FlopsAndBytesAreThoseOfThePrintedStep) {
  const std::unique_ptr<Session> session = Toy("configs/tiny_cpu.pbtxt");
  const auto measured = MeasureUtilisation(*session);
  ASSERT_TRUE(measured.ok()) << measured.status();
  Cost cost;
  for (const StepRow& row : RowsOfStep(session->plan())) {
    for (int i = 0; i < row.count; ++i) cost += row.cost;
  }
  const Json& step = (*measured)["work"].back();
  const double ms = step["ms"];
  EXPECT_NEAR(step["tflops"].get<double>() * ms * 1e9 / cost.product_flops, 1,
              1e-9);
  EXPECT_NEAR(step["gb_per_s"].get<double>() * ms * 1e6 /
                  static_cast<double>(cost.bytes),
              1, 1e-9);
}

TEST(UtilisationTest, ForwardIsThatOfEvaluation) {
  const std::unique_ptr<Session> session =
      Toy("configs/tiny_cpu.pbtxt", {"training.micro_batches=2"});
  const auto measured = MeasureUtilisation(*session);
  ASSERT_TRUE(measured.ok()) << measured.status();
  const auto& ops = session->plan().step->evaluation_loss.program.ops();
  // The head is in the loss, which a step computes with its backward pass.
  EXPECT_GT(ops.back().op->ForwardCost().product_flops, 0);
  double flops = 0;
  for (const OpNode& node : ops) {
    flops += 2 * node.op->ForwardCost().product_flops;
  }
  const Json& work = (*measured)["work"];
  const Json& forward = work[work.size() - 3];
  EXPECT_EQ(forward["work"], "forward");
  const double ms = forward["ms"];
  EXPECT_NEAR(forward["tflops"].get<double>() * ms * 1e9 / flops, 1, 1e-9);
}

TEST(UtilisationTest, AttentionOfEachWindow) {
  const std::unique_ptr<Session> session =
      Toy("configs/tiny_cpu.pbtxt",
          {"model.num_layers=4",
           "model.attention_window=[{tokens: 4}, {}, {tokens: 4}, {}]"});
  const auto measured = MeasureUtilisation(*session);
  ASSERT_TRUE(measured.ok()) << measured.status();
  std::vector<std::string> names;
  for (const Json& one : (*measured)["work"]) {
    const std::string name = one["work"];
    if (name.rfind("attention", 0) == 0) names.push_back(name);
  }
  EXPECT_THAT(names, ElementsAre("attention (window of 4 keys) forward",
                                 "attention (window of 4 keys) backward",
                                 "attention forward", "attention backward"));
}

TEST(UtilisationTest, TheRoofHasItsRidgeWhereTheCeilingsMeet) {
  const std::unique_ptr<Session> session = Toy("configs/tiny_cpu.pbtxt");
  const auto measured = MeasureUtilisation(*session);
  ASSERT_TRUE(measured.ok()) << measured.status();
  const Json& roof = (*measured)["roof"];
  ASSERT_EQ(roof.size(), 3u);
  const double gemm = (*measured)["gemm_tflops"];
  const double copy = (*measured)["copy_gb_per_s"];
  EXPECT_NEAR(roof[1]["tflops"].get<double>() / gemm, 1, 1e-9);
  EXPECT_NEAR(roof[2]["tflops"].get<double>() / gemm, 1, 1e-9);
  for (int i = 0; i < 2; ++i) {
    EXPECT_NEAR(roof[i]["tflops"].get<double>() /
                    (roof[i]["flop_per_byte"].get<double>() * copy * 1e-3),
                1, 1e-9);
  }
}

}  // namespace
}  // namespace tessera
