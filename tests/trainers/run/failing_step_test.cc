// Training runs of which an op fails.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "framework/base/exit_code.h"
#include "framework/base/file.h"
#include "framework/program/autograd_op.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/program/test_ops.h"
#include "tests/trainers/toy_session.h"
#include "trainers/plan/run_plan.h"
#include "trainers/run/instruments.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/trainer.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A function of a matrix, which the backward pass calls again.
using Function = std::function<at::Tensor(const at::Tensor&)>;

// A program whose loss is the function "idea" of a matrix; it reads the batch
// and ignores it.
LossProgram ProgramOf(const RunPlan& plan, const Function& function) {
  ProgramBuilder b(TargetOf(plan));
  const TensorType tokens = {{plan.micro_batch, plan.shape.context}, at::kLong};
  const Value ids = b.Input("ids", tokens);
  const Value targets = b.Input("targets", tokens);
  const Value w = b.Read(testing::Matrix(b, "w", 4, 4), at::kFloat);
  const AutogradFunction idea = {
      .name = "idea", .function = [function](const std::vector<at::Tensor>& x) {
        return function(x[0]);
      }};
  Value loss;
  {
    const ProgramBuilder::Scope block(b, "block_0");
    loss = AutogradOp(b, idea, {w, ids, targets}, {{}, at::kFloat});
  }
  b.Output(loss);
  Program program = std::move(b).Build().value();
  return {std::move(program), ids, targets, loss};
}

// The plan of a toy run, with other programs to train and evaluate.
RunPlan PlanOf(const std::vector<std::string>& more, const Function& trained,
               const Function& evaluated) {
  std::vector<std::string> sets = {
      "training.steps=6", "training.sample_tokens_at_end=0",
      "training.eval_every_steps=4", "observe.log_every_steps=1"};
  sets.insert(sets.end(), more.begin(), more.end());
  RunPlan plan = PlanRun(ToyConfig("configs/tiny_cpu.pbtxt", sets), {}).value();
  auto step = std::make_shared<StepPlan>(ProgramOf(plan, trained),
                                         ProgramOf(plan, evaluated));
  const absl::Status listed = PlanLists({.execution = plan.config.execution()},
                                        TargetOf(plan), step.get());
  EXPECT_TRUE(listed.ok()) << listed;
  const auto parameters = step->loss.program.parameters();
  plan.parameters = {parameters.begin(), parameters.end()};
  plan.step = std::move(step);
  return plan;
}

// Trains as `train` does.
absl::Status Train(RunPlan plan) {
  const KeepDeterminism keep;
  const std::string folder =
      absl::StrCat(::testing::TempDir(), "/failing_step_", getpid());
  EXPECT_TRUE(RemoveTree(folder).ok());
  Instruments instruments(plan, folder);
  auto session =
      Session::Create(std::move(plan), {.phases = instruments.phases()});
  EXPECT_TRUE(session.ok()) << session.status();
  auto opened = OpenRunFolder(folder, "never", /*writes=*/true);
  EXPECT_TRUE(opened.ok()) << opened.status();
  auto trainer = Trainer::Create(*std::move(session), *std::move(opened),
                                 {.instruments = &instruments});
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  absl::Status status = (*trainer)->Run();
  EXPECT_TRUE(RemoveTree(folder).ok());
  return status;
}

absl::Status Train(const std::vector<std::string>& sets,
                   const Function& trained, const Function& evaluated) {
  return Train(PlanOf(sets, trained, evaluated));
}

at::Tensor Good(const at::Tensor& w) { return w.square().sum(); }

TEST(FailingStepTest, AnErrorNamesTheOp) {
  const absl::Status status = Train(
      {},
      [](const at::Tensor& w) -> at::Tensor {
        if (at::GradMode::is_enabled()) TORCH_CHECK(false, "no gradient");
        return Good(w);
      },
      Good);
  EXPECT_EQ(status,
            absl::InternalError("op block_0/idea (backward): LibTorch: no "
                                "gradient"));
}

// What the GPU's runtime says if it has no memory for a graph or a kernel.
TEST(FailingStepTest, OutOfMemoryComesWithAdviceWhereverItHappens) {
  const Function runs_out = [](const at::Tensor&) -> at::Tensor {
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 2,
                                "CUDA error: out of memory\nCompile with");
  };
  for (const bool evaluates : {false, true}) {
    SCOPED_TRACE(evaluates);
    const absl::Status status =
        Train({}, evaluates ? Good : runs_out, evaluates ? runs_out : Good);
    EXPECT_EQ(ExitCode(status), 3) << status;
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr("out of memory: op block_0/idea (forward): CUDA error: "
                        "out of memory\n"),
              HasSubstr("parameters"), HasSubstr("what would help")));
  }
}

class GpuFailingStepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  }

  // With a timer of the phases inside a graph.
  static std::vector<std::string> Sets(const std::string& mode) {
    return {"training.device=CUDA", "execution.mode=" + mode,
            "observe.block_phases=true"};
  }
};

// .item() waits for the GPU, which a recording cannot.
TEST_F(GpuFailingStepTest, ARecordingNamesTheOpThatItCannotHold) {
  for (const std::string mode : {"AUTO", "GRAPH"}) {
    for (const bool in_backward : {false, true}) {
      SCOPED_TRACE(absl::StrCat(mode, in_backward ? " backward" : " forward"));
      const Function reads = [in_backward](const at::Tensor& w) {
        if (in_backward && !at::GradMode::is_enabled()) return Good(w);
        return Good(w) * w.detach().sum().item<float>();
      };
      std::vector<std::string> sets = Sets(mode);
      // Notes the ops of the recording.
      sets.insert(sets.end(),
                  {"observe.trace.active=1", "observe.trace.wait=4"});
      const absl::Status status = Train(sets, reads, Good);
      EXPECT_EQ(ExitCode(status), 1) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("cannot be recorded as a CUDA graph: op "
                                  "block_0/idea ("),
                        HasSubstr(in_backward ? "(backward): " : "(forward): "),
                        HasSubstr("when stream is capturing"),
                        HasSubstr("set execution.mode: EAGER")));
    }
  }
  const Function reads = [](const at::Tensor& w) {
    return Good(w) * w.detach().sum().item<float>();
  };
  EXPECT_EQ(Train(Sets("EAGER"), reads, Good), absl::OkStatus());
  // Later runs of this process record their steps and draw random numbers.
  EXPECT_EQ(Train(Sets("GRAPH"), Good, Good), absl::OkStatus());
  EXPECT_TRUE(at::randn({8}, at::kCUDA).isfinite().all().item<bool>());
}

// Evaluations are recorded, too.
TEST_F(GpuFailingStepTest, ARecordedEvaluationNamesTheOpThatItCannotHold) {
  std::vector<std::string> sets = Sets("GRAPH");
  sets.push_back("training.eval_every_steps=1");
  const absl::Status status = Train(sets, Good, [](const at::Tensor& w) {
    return Good(w) * w.sum().item<float>();
  });
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("recorded as a CUDA graph: op block_0/idea (forward)"));
}

using GpuFailingStepDeathTest = GpuFailingStepTest;

// A process whose kernel reads memory that is not there can only end.
TEST_F(GpuFailingStepDeathTest, AnIllegalAddressEndsTheRunWithItsStep) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Function faults = [](const at::Tensor& w) {
    static int calls = 0;  // two a step
    void* const address =
        calls++ < 4 ? w.mutable_data_ptr() : reinterpret_cast<void*>(4096);
    const at::Tensor x = at::for_blob(address, {4})
                             .options(w.options())
                             .target_device(w.device())
                             .make_tensor();
    return Good(w) + x.sum();
  };
  for (const char* mode : {"GRAPH", "EAGER"}) {
    SCOPED_TRACE(mode);
    EXPECT_EXIT(std::exit(ReportAndExitCode(Train(Sets(mode), faults, Good))),
                ::testing::ExitedWithCode(1),
                AllOf(HasSubstr("error: step 3: "),
                      HasSubstr("an illegal memory access was encountered"),
                      HasSubstr("run again with CUDA_LAUNCH_BLOCKING=1 in the "
                                "environment and execution.mode: EAGER")));
  }
  // These settings name the op.
  setenv("CUDA_LAUNCH_BLOCKING", "1", /*overwrite=*/1);
  EXPECT_EXIT(std::exit(ReportAndExitCode(Train(Sets("EAGER"), faults, Good))),
              ::testing::ExitedWithCode(1),
              AllOf(HasSubstr("error: step 3: op block_0/idea (forward): "),
                    HasSubstr("an illegal memory access was encountered"),
                    Not(HasSubstr("run again"))));
  unsetenv("CUDA_LAUNCH_BLOCKING");
}

}  // namespace
}  // namespace tessera
