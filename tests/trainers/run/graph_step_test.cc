// Steps that a CUDA graph launches.

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/text_proto.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/device_spec.h"
#include "framework/observe/trace/trace_recorder.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/testing/error_budget.h"
#include "tests/testing/weights.h"
#include "tests/trainers/toy_session.h"
#include "trainers/plan/run_plan.h"

namespace tessera {
namespace {

using testing::BitEqual;
using ::testing::HasSubstr;

TEST(GraphStepTest, NeedsAGpu) {
  const auto plan = PlanRun(
      ToyConfig("configs/tiny_cpu.pbtxt", {"execution.mode=GRAPH"}), {});
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr("execution.mode: GRAPH needs a GPU"));
}

TEST(GraphStepTest, AutoSaysWhatAGraphWouldHide) {
  const DeviceInfo gpu = DeviceToPlanFor("H200").value();
  const auto chosen = [](const std::vector<std::string>& sets,
                         const std::optional<DeviceInfo>& device) {
    const auto describe = [&](const RunConfig& config) {
      const auto plan = PlanRun(config, WorldInfo{}, device);
      return plan.ok() ? DescribeExecution(*plan) : plan.status().ToString();
    };
    const RunConfig config = ToyConfig("configs/tiny_cpu.pbtxt", sets);
    RunConfig resolved;  // as a run folder keeps it
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        PrintWithDefaults(config), &resolved));
    EXPECT_EQ(describe(resolved), describe(config));
    return describe(config);
  };
  EXPECT_EQ(chosen({}, {}), "EAGER (chosen by AUTO: a graph needs a GPU)");
  EXPECT_EQ(chosen({}, gpu),
            "GRAPH (chosen by AUTO), overlapped weight gradients, deferred "
            "update");
  EXPECT_EQ(chosen({"training.batch_size=128"}, gpu),
            "GRAPH (chosen by AUTO), deferred update");
  EXPECT_EQ(chosen({"observe.block_phases=true"}, gpu),
            "GRAPH (chosen by AUTO)");
  EXPECT_EQ(chosen({"observe.block_phases=true", "execution.defer_update=true",
                    "execution.mode=GRAPH", "training.device=CUDA"},
                   gpu),
            "GRAPH (as configured), deferred update");
  EXPECT_EQ(chosen({"execution.mode=EAGER"}, gpu), "EAGER (as configured)");
  EXPECT_EQ(chosen({"execution.storage=ALLOCATOR"}, gpu),
            "EAGER (chosen by AUTO: execution.storage is ALLOCATOR)");
  for (const auto& [set, why] :
       std::vector<std::pair<std::string, std::string>>{
           {"observe.nvtx=true", "observe.nvtx shows what the host does"},
           {"observe.memory=true", "observe.memory shows each tensor"},
           {"observe.memory_snapshot_step=3",
            "observe.memory_snapshot_step shows each tensor"}}) {
    if (!kCudaBuild && set == "observe.nvtx=true") continue;  // refused
    EXPECT_EQ(chosen({"training.device=CUDA", set}, gpu),
              absl::StrCat("EAGER (chosen by AUTO: ", why, ")"));
  }
  if (kCudaBuild) {
    EXPECT_EQ(chosen({"training.device=CUDA", "observe.nvtx=true",
                      "execution.mode=GRAPH", "execution.defer_update=false"},
                     gpu),
              "GRAPH (as configured), overlapped weight gradients, NVTX ranges "
              "around whole steps only");
  }
}

using Sets = std::vector<std::string>;
// The kernels of a step with the ops that issued them.
using Kernels = std::multiset<std::pair<std::string, std::string>>;

class GpuGraphStep : public ::testing::TestWithParam<Sets> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  }

  static std::unique_ptr<Session> Make(const std::string& mode,
                                       const SessionOptions& options = {},
                                       const Sets& more = {}) {
    Sets sets = {"training.device=CUDA",
                 "model.d_model=64",
                 "execution.defer_update=false",
                 "execution.overlap_weight_gradients=false",
                 "model.context_length=33",
                 absl::StrCat("execution.mode=", mode)};
    sets.insert(sets.end(), GetParam().begin(), GetParam().end());
    sets.insert(sets.end(), more.begin(), more.end());
    return Toy("configs/small.pbtxt", sets, options);
  }

  static Kernels KernelsOfAStep(const std::string& mode) {
    Kernels kernels;
    if constexpr (kCudaBuild) {
      TraceRecorder recorder(CuptiActivities(/*max_records=*/100'000));
      const auto session = Make(mode, {.phases = &recorder});
      Train(*session, 4);
      EXPECT_TRUE(recorder.Start().ok());
      recorder.Keep();
      Train(*session, session->step(), 4, 1);
      const absl::StatusOr<Trace> trace = recorder.Stop();
      EXPECT_TRUE(trace.ok()) << trace.status();
      for (const DeviceActivity& activity : trace->activities) {
        kernels.emplace(trace->PathOf(activity.range),
                        trace->names[activity.name]);
      }
    }
    return kernels;
  }

 private:
  const KeepDeterminism keep_;
};

void ExpectSameState(Session& a, Session& b) {
  EXPECT_TRUE(BitEqual(WeightsOf(*a.state().parameters),
                       WeightsOf(*b.state().parameters)));
  EXPECT_TRUE(
      BitEqual(a.step().metrics().grad_norm, b.step().metrics().grad_norm));
  const Ema *const of_a = a.state().optimizer->ema(), *const of_b =
                                                          b.state()
                                                              .optimizer->ema();
  if (of_a != nullptr) {
    EXPECT_TRUE(BitEqual(of_a->average(), of_b->average()));
  }
}

TEST_P(GpuGraphStep, HasTheBitsOfAnEagerStep) {
  const auto eager = Make("EAGER", {}, {"execution.defer_update=false"});
  const auto graph = Make("GRAPH");
  EXPECT_EQ(Train(*graph, 6), Train(*eager, 6));
  ExpectSameState(*graph, *eager);

  // Evaluations and gradients between the steps, the last two of which a graph
  // launches, and a resumed run's number of the step.
  for (int64_t sample = 0; sample < 4; ++sample) {
    std::vector<double> losses;
    for (Session* const session : {eager.get(), graph.get()}) {
      const auto batch = session->train_loader().Load(sample);
      ASSERT_TRUE(batch.ok());
      ASSERT_TRUE(session->step().Forward(*batch).ok());
      losses.push_back(session->step().metrics().loss.item<double>());
    }
    EXPECT_EQ(losses[0], losses[1]) << sample;
  }
  for (int time = 0; time < 4; ++time) {
    const auto batch = graph->train_loader().Load(time);
    ASSERT_TRUE(batch.ok());
    for (Session* const session : {eager.get(), graph.get()}) {
      session->state().parameters->grad().zero_();
      ASSERT_TRUE(session->step().ForwardBackward(*batch).ok());
    }
    EXPECT_TRUE(
        BitEqual(graph->step().metrics().loss, eager->step().metrics().loss));
    EXPECT_TRUE(BitEqual(graph->state().parameters->grad(),
                         eager->state().parameters->grad()))
        << time;
  }
  for (Session* const session : {eager.get(), graph.get()}) {
    session->step().SetNextStep(6);
  }
  EXPECT_EQ(Train(*graph, graph->step(), 6, 4),
            Train(*eager, eager->step(), 6, 4));
  ExpectSameState(*graph, *eager);
  EXPECT_FALSE(graph->step().first_bad_step().has_value());
}

TEST_P(GpuGraphStep, ATraceShowsTheKernelsOfAnEagerStep) {
  const Kernels eager = KernelsOfAStep("EAGER");
  const Kernels graph = KernelsOfAStep("GRAPH");
  EXPECT_GT(eager.size(), 50u);
  Kernels only_eager, only_graph;
  std::set_difference(eager.begin(), eager.end(), graph.begin(), graph.end(),
                      std::inserter(only_eager, only_eager.end()));
  std::set_difference(graph.begin(), graph.end(), eager.begin(), eager.end(),
                      std::inserter(only_graph, only_graph.end()));
  EXPECT_THAT(only_eager, ::testing::IsEmpty());
  EXPECT_THAT(only_graph, ::testing::IsEmpty());
}

TEST_P(GpuGraphStep, ANonFiniteLossEndsUpdates) {
  const auto graph = Make("GRAPH");
  Train(*graph, 4);
  SpoilAWeight(*graph->state().parameters);
  const at::Tensor before = WeightsOf(*graph->state().parameters);
  Train(*graph, graph->step(), 4, 3);
  EXPECT_EQ(graph->step().first_bad_step(), 4);
  EXPECT_TRUE(at::allclose(before, WeightsOf(*graph->state().parameters), 0, 0,
                           /*equal_nan=*/true));
}

INSTANTIATE_TEST_SUITE_P(
    Each, GpuGraphStep,
    ::testing::Values(
        Sets{}, Sets{"precision.mode=BF16"}, Sets{"precision.mode=FP16"},
        Sets{"precision.mode=BF16", "training.micro_batches=2",
             "optimizer.clip_norm=1.0"},
        Sets{"precision.mode=BF16", "recompute.policy=BLOCK"},
        Sets{"precision.mode=BF16", "execution.overlap_weight_gradients=true"},
        Sets{"execution.overlap_weight_gradients=true",
             "training.micro_batches=2", "recompute.policy=BLOCK"},
        // Products long enough to be under way at once.
        Sets{"precision.mode=BF16", "execution.overlap_weight_gradients=true",
             "model.d_model=1024", "model.num_heads=8", "model.d_ff=4096",
             "model.context_length=512", "training.batch_size=8"},
        Sets{"training.micro_batches=2", "optimizer.clip_norm=1.0"},
        Sets{"execution.defer_update=true"},
        Sets{"precision.mode=FP16", "execution.defer_update=true"},
        Sets{"precision.mode=BF16", "execution.defer_update=true",
             "training.micro_batches=2", "optimizer.clip_norm=1.0"},
        Sets{"precision.mode=BF16", "execution.defer_update=true",
             "recompute.policy=BLOCK",
             "execution.overlap_weight_gradients=true"},
        // An update of several slices, long enough to be under way while the
        // forward pass runs.
        Sets{"precision.mode=BF16", "execution.defer_update=true",
             "model.d_model=1024", "model.num_heads=8", "model.d_ff=4096",
             "model.num_layers=4", "model.context_length=512"},
        Sets{"precision.mode=BF16", "model.frozen=['layers.0.*']"},
        Sets{"precision.mode=BF16", "optimizer.muon.ns_steps=5"},
        Sets{"precision.mode=FP16", "execution.defer_update=true",
             "training.micro_batches=2", "optimizer.muon.normuon_beta2=0.95"},
        Sets{"precision.mode=BF16", "execution.defer_update=true",
             "optimizer.ema.decay=0.9", "optimizer.muon.ns_steps=5"},
        Sets{"precision.mode=BF16", "attention.backend=NAIVE"},
        Sets{"precision.mode=BF16", "attention.backend=COMPILED_FUSED"},
        Sets{"precision.mode=BF16", "attention.backend=TORCH_EFFICIENT"}));

}  // namespace
}  // namespace tessera
