#include "trainers/run/session.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "attention_backends/attention_config.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "framework/program/executor.h"
#include "framework/program/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_group.h"
#include "tests/testing/recording_observer.h"
#include "tests/testing/weights.h"
#include "tests/trainers/toy_session.h"
#include "trainers/config/config_loader.h"
#include "trainers/plan/step_rows.h"
#include "trainers/run/evaluation.h"

namespace tessera {
namespace {

// The files of configs/, or of a folder in it.
std::vector<std::string> ConfigFiles(const std::string& folder = "") {
  const std::string one = FindRuntimeFile("configs/tiny_cpu.pbtxt").value();
  return Glob(absl::StrCat(one.substr(0, one.rfind('/')), "/", folder,
                           "/*.pbtxt"))
      .value();
}

// The attention problem of a run of `config` on a GPU of compute capability
// 9.0.
AttentionProblem AttentionOnGpu(RunConfig config) {
  config.mutable_training()->set_device(TrainingConfig::CPU);
  config.mutable_attention()->set_backend(AttentionConfig::AUTO);
  config.mutable_model()->set_num_layers(1);  // fits any machine
  const auto plan = PlanRun(config, {});
  EXPECT_TRUE(plan.ok()) << plan.status();
  AttentionProblem problem = plan->attention;
  problem.cuda = true;
  problem.compute_capability = 90;
  return problem;
}

class EveryConfigTest : public testing::TestWithParam<std::string> {};

TEST_P(EveryConfigTest, SupportsEveryBackendOnAGpu) {
  for (const std::string& attention : ConfigFiles("attention")) {
    const auto config = LoadRunConfig(
        {GetParam(), FindRuntimeFile("configs/precision/bf16.pbtxt").value(),
         attention},
        {});
    ASSERT_TRUE(config.ok()) << config.status();
    const auto choice = SelectBackend(BackendRequestOf(config->attention()),
                                      AttentionOnGpu(*config));
    EXPECT_TRUE(choice.ok()) << choice.status();
  }
}

TEST_P(EveryConfigTest, DoesTwoStepsAtToySize) {
  const std::unique_ptr<Session> session = Toy(GetParam());
  for (double loss : Train(*session, 2)) {
    EXPECT_NEAR(loss, std::log(61.0), 0.5);
  }
  EXPECT_FALSE(session->step().first_bad_step().has_value());
}

INSTANTIATE_TEST_SUITE_P(Configs, EveryConfigTest,
                         testing::ValuesIn(ConfigFiles()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           std::string name =
                               info.param.substr(info.param.rfind('/') + 1);
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

// Without a GPU, a backend that needs one stops the run.
TEST(SessionTest, AttentionConfigsTrainOrAreRefusedByName) {
  for (const std::string& file : ConfigFiles("attention")) {
    const auto loaded = LoadRunConfig({"configs/tiny_cpu.pbtxt", file}, {});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const std::string& backend =
        AttentionConfig::Backend_Name(loaded->attention().backend());
    const auto session = Session::Create(
        ToyConfig("configs/tiny_cpu.pbtxt", {"attention.backend=" + backend}),
        {});
    if (!session.ok()) {
      EXPECT_EQ(session.status().code(), absl::StatusCode::kUnimplemented);
      EXPECT_THAT(std::string(session.status().message()),
                  testing::HasSubstr(backend));
      continue;
    }
    for (double loss : Train(**session, 2)) {
      EXPECT_NEAR(loss, std::log(61.0), 0.5) << backend;
    }
  }
}

TEST(SessionTest, LossFallsTowardsTheDataEntropy) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  const std::vector<double> losses = Train(*session, 60);
  EXPECT_LT(losses.back(), losses.front() - 1);
}

// Passes what the ranks must agree on to a map.
class AgreeingRanks : public FakeGroup {
 public:
  explicit AgreeingRanks(std::map<std::string, uint64_t>* values)
      : values_(*values) {}
  absl::Status AgreeOn(absl::string_view what, uint64_t value) override {
    values_[std::string(what)] = value;
    return {};
  }

 private:
  std::map<std::string, uint64_t>& values_;
};

TEST(SessionTest, RanksMustHaveTheSameValidationData) {
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/session_", getpid());
  ASSERT_TRUE(MakeDirectories(folder).ok());
  const std::string train = folder + "/train.bin", held = folder + "/val.bin";
  ASSERT_TRUE(WriteFileAtomically(train, std::string(1000, '\0')).ok());
  const auto values_with = [&](size_t validation_bytes) {
    EXPECT_TRUE(
        WriteFileAtomically(held, std::string(validation_bytes, '\0')).ok());
    const RunConfig config =
        ToyConfig("configs/tiny_cpu.pbtxt",
                  {absl::StrCat("data={token_files { format: NANOGPT train: '",
                                train, "' validation: '", held, "' }}")});
    std::map<std::string, uint64_t> values;
    const auto session =
        Session::Create(PlanRun(config, {}).value(),
                        std::make_unique<AgreeingRanks>(&values), {});
    EXPECT_TRUE(session.ok()) << session.status();
    return values;
  };
  const std::map<std::string, uint64_t> shorter = values_with(500);
  const std::map<std::string, uint64_t> longer = values_with(600);
  const std::string differs = "the validation data's fingerprint";
  ASSERT_TRUE(shorter.contains(differs));
  for (const auto& [what, value] : shorter) {
    EXPECT_EQ(longer.at(what) == value, what != differs) << what;
  }
}

TEST(SessionTest, MicroBatchesAreConsecutivePartsOfTheBatch) {
  const auto whole = Toy("configs/tiny_cpu.pbtxt");
  const auto split =
      Toy("configs/tiny_cpu.pbtxt", {"training.micro_batches=2"});
  const Batch expected = whole->train_loader().Load(8).value();
  const Batch batch = split->train_loader().Load(8).value();
  EXPECT_EQ(expected.ids_mbs.sizes(), at::IntArrayRef({1, 4, 9}));
  EXPECT_EQ(batch.ids_mbs.sizes(), at::IntArrayRef({2, 2, 9}));
  EXPECT_TRUE(at::equal(batch.ids_mbs.view({1, 4, 9}), expected.ids_mbs));
  EXPECT_TRUE(
      at::equal(batch.targets_mbs.view({1, 4, 9}), expected.targets_mbs));
  EXPECT_EQ(batch.valid_targets, expected.valid_targets);
}

TEST(SessionTest, MicroBatchesGiveTheSameStepExceptRounding) {
  const auto whole = Toy("configs/tiny_cpu.pbtxt");
  const auto split =
      Toy("configs/tiny_cpu.pbtxt", {"training.micro_batches=4"});
  const std::vector<double> expected = Train(*whole, 5);
  const std::vector<double> losses = Train(*split, 5);
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 1e-5 * expected[i]) << "step " << i;
  }
}

TEST(SessionTest, SameConfigGivesTheSameBits) {
  const auto a = Toy("configs/tiny_cpu.pbtxt");
  const auto b = Toy("configs/tiny_cpu.pbtxt");
  EXPECT_EQ(Train(*a, 3), Train(*b, 3));
  EXPECT_TRUE(at::equal(WeightsOf(*a->state().parameters),
                        WeightsOf(*b->state().parameters)));
}

// After one step, the first moment is a tenth of AdamW's input gradient.
TEST(SessionTest, ClipsTheGradientToTheConfigsNorm) {
  const auto moment_norm = [](const std::vector<std::string>& sets,
                              double* gradient_norm) {
    const auto session = Toy("configs/tiny_cpu.pbtxt", sets);
    EXPECT_EQ(session->plan().config.optimizer().adamw().beta1(), 0.9);
    Train(*session, 1);
    *gradient_norm = session->step().metrics().grad_norm.item<double>();
    return session->state().optimizer->exp_avg().norm().item<double>();
  };
  double unclipped_norm = 0, clipped_norm = 0;
  const double unclipped =
      moment_norm({"optimizer.clip_norm=1e6"}, &unclipped_norm);
  EXPECT_NEAR(unclipped, 0.1 * unclipped_norm, 1e-5 * unclipped);
  const double clip = unclipped_norm / 4;
  const double clipped =
      moment_norm({absl::StrCat("optimizer.clip_norm=", clip)}, &clipped_norm);
  EXPECT_EQ(clipped_norm, unclipped_norm);  // the norm before clipping
  EXPECT_NEAR(clipped, 0.1 * clip, 1e-4 * clipped);
}

TEST(SessionTest, NonFiniteGradientChangesNothingFromThatStepOn) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  Train(*session, 2);
  ParameterStore& store = *session->state().parameters;
  SpoilAWeight(*session->state().parameters);
  const at::Tensor before = WeightsOf(store);
  Train(*session, 3);
  EXPECT_EQ(session->step().first_bad_step(), 2);
  EXPECT_TRUE(at::allclose(before, WeightsOf(store), 0, 0, /*equal_nan=*/true));
}

TEST(SessionTest, EvaluationIsTheTokenMeanOverUnevenBatches) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  const int64_t windows = 6;  // batches of 4: the second is half padding
  const auto result = Evaluate(session->step(), *session->validation_loader(),
                               session->group(), windows);
  ASSERT_TRUE(result.ok()) << result.status();
  // One window at a time.
  const auto plan =
      PlanRun(ToyConfig("configs/tiny_cpu.pbtxt", {"training.batch_size=1"}),
              {})
          .value()
          .step;
  const Schedule forward = ForwardSchedule(plan->evaluation_loss.program);
  const auto one = std::make_unique<Executor>(forward, PlanLifetimes(forward),
                                              *session->state().parameters);
  const BatchLoader loader(session->data().validation.get(), {},
                           /*micro_batches=*/1, at::kCPU);
  double sum = 0;
  int64_t tokens = 0;
  for (int64_t w = 0; w < windows; ++w) {
    const Batch batch = loader.Load(w).value();
    one->SetInput(plan->loss.ids, batch.ids_mbs[0]);
    one->SetInput(plan->loss.targets, batch.targets_mbs[0]);
    one->Run();
    sum += one->Get(plan->loss.loss).item<double>();
    tokens += batch.valid_targets;
  }
  EXPECT_EQ(result->tokens, tokens);
  EXPECT_NEAR(result->loss, sum / tokens, 1e-5);
}

TEST(SessionTest, PhasesAreNamedAndNested) {
  RecordingObserver recorder;
  const auto session = Toy("configs/tiny_cpu.pbtxt", {}, {.phases = &recorder});
  Train(*session, 1);
  EXPECT_THAT(
      recorder.paths(),
      testing::IsSupersetOf({"forward", "backward", "optimizer",
                             "forward/block_0", "forward/block_1/attention",
                             "forward/block_1/attention/attention/scores",
                             "forward/block_1/attention/attention/softmax",
                             "forward/block_1/attention/attention/values"}));
  EXPECT_EQ(recorder.depth(), 0);
}

TEST(SessionTest, RejectsWhatTheMachineOrTheRanksCannotDo) {
  RunConfig config = ToyConfig("configs/tiny_cpu.pbtxt");
  WorldInfo three{.world_size = 3};
  EXPECT_THAT(std::string(PlanRun(config, three).status().message()),
              testing::HasSubstr("must be a multiple of 3"));
  auto large = LoadRunConfig({"configs/tiny_cpu.pbtxt"},
                             {"training.batch_size=100000000"})
                   .value();
  const absl::Status too_large = PlanRun(large, {}).status();
  EXPECT_EQ(too_large.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(too_large.message()),
              testing::AllOf(testing::HasSubstr("activations"),
                             testing::HasSubstr("training.batch_size")));
  const auto advice = [&](AttentionConfig::Backend backend) {
    large.mutable_attention()->set_backend(backend);
    return std::string(PlanRun(large, {}).status().message());
  };
  EXPECT_THAT(advice(AttentionConfig::NAIVE),
              testing::HasSubstr("attention { backend: FLASH_TILED }: NAIVE"));
  EXPECT_THAT(advice(AttentionConfig::FLASH_TILED),
              testing::Not(testing::HasSubstr("attention {")));
  if (at::hasCUDA()) return;
  config.mutable_training()->set_device(TrainingConfig::CUDA);
  const absl::Status status = PlanRun(config, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("training.device=CPU"));
}

// The objective's terms belong to training, the soft cap to the model.
TEST(SessionTest, OnlyTrainingSeesTheObjective) {
  struct Losses {
    double validation, training;
  };
  const auto losses = [](const std::vector<std::string>& sets) {
    const auto session = Toy("configs/tiny_cpu.pbtxt", sets);
    const Batch batch = session->train_loader().Load(0).value();
    const auto loss = [&] {
      return session->step().metrics().loss.item<double>();
    };
    EXPECT_TRUE(session->step().Forward(batch).ok());
    const double validation = loss();
    EXPECT_TRUE(session->step().ForwardBackward(batch).ok());
    return Losses{validation, loss()};
  };
  const Losses plain = losses({});
  EXPECT_NEAR(plain.training, plain.validation, 1e-6);
  for (const std::string set :
       {"training.label_smoothing=0.5", "training.z_loss=0.1"}) {
    const Losses changed = losses({set});
    EXPECT_EQ(changed.validation, plain.validation) << set;
    EXPECT_GT(std::abs(changed.training - plain.training), 1e-3) << set;
  }
  const Losses capped = losses({"model.logit_soft_cap=0.5"});
  EXPECT_GT(std::abs(capped.validation - plain.validation), 1e-3);
  EXPECT_NEAR(capped.training, capped.validation, 1e-6);
  const Losses capped_scores = losses({"model.attention_soft_cap=0.5"});
  EXPECT_NE(capped_scores.validation, plain.validation);
  EXPECT_NEAR(capped_scores.training, capped_scores.validation, 1e-6);
  const Losses scaled =
      losses({"model.rope_scaling={factor: 8 original_context_length: 16}"});
  EXPECT_NE(scaled.validation, plain.validation);
  const Losses windowed = losses({"model.attention_window=[{tokens: 4}]"});
  EXPECT_NE(windowed.validation, plain.validation);
  EXPECT_NEAR(windowed.training, windowed.validation, 1e-6);
  for (const std::string form : {"HEAD", "PROJECTION"}) {
    const Losses normed = losses({"model.qk_norm=" + form});
    EXPECT_NE(normed.validation, plain.validation) << form;
    EXPECT_NEAR(normed.training, normed.validation, 1e-6) << form;
  }
}

TEST(SessionTest, GradientsAndLossesSeeAllUpdates) {
  const KeepDeterminism keep;
  const auto seen = [](const std::string& defer) {
    const auto session =
        Toy("configs/tiny_cpu.pbtxt",
            {"execution.defer_update=" + defer, "execution.storage=ARENA",
             "recompute.policy=BLOCK"});
    TrainStep& step = session->step();
    std::vector<at::Tensor> tensors;
    for (int64_t i = 0; i < 3; ++i) {
      const Batch batch = session->train_loader().Load(i).value();
      EXPECT_TRUE(step.Run(batch, 1e-2).ok());
      EXPECT_TRUE(step.Forward(batch).ok());
      tensors.push_back(step.metrics().loss.clone());
      EXPECT_TRUE(step.Run(batch, 1e-2).ok());
      EXPECT_TRUE(step.ForwardBackward(batch).ok());
      tensors.push_back(step.metrics().loss.clone());
      tensors.push_back(session->state().parameters->grad().clone());
    }
    return tensors;
  };
  const std::vector<at::Tensor> at_once = seen("false"), later = seen("true");
  for (size_t i = 0; i < at_once.size(); ++i) {
    EXPECT_TRUE(at::equal(later[i], at_once[i])) << i;
  }
}

// The rows of the precision policy that no op reads; for the others see
// tests/models.
TEST(SessionTest, ObeysThePolicyOutsideOfTheProgram) {
  const auto session_with = [](OpClass op, at::ScalarType dtype) {
    RunPlan plan = PlanRun(ToyConfig("configs/tiny_cpu.pbtxt"), {}).value();
    plan.precision = plan.precision.With(op, dtype);
    plan.step = PlanStep({.lm = {.shape = plan.shape,
                                 .batch = plan.attention.b,
                                 .sequence = plan.attention.s,
                                 .backend = plan.backend.backend,
                                 .attention = plan.attention}},
                         TargetOf(plan))
                    .value();
    return Session::Create(std::move(plan), {});
  };
  const auto plain = Toy("configs/tiny_cpu.pbtxt");
  const std::vector<double> losses = Train(*plain, 3);
  EXPECT_EQ(plain->step().metrics().grad_norm.scalar_type(), at::kFloat);
  const auto wide = session_with(OpClass::kReduction, at::kDouble).value();
  const std::vector<double> wide_losses = Train(*wide, 3);
  EXPECT_EQ(wide->step().metrics().grad_norm.scalar_type(), at::kDouble);
  EXPECT_EQ(wide->step().metrics().loss.scalar_type(), at::kDouble);
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(wide_losses[i], losses[i], 1e-5 * losses[i]);
  }

  // AdamW only supports state in the masters' dtype.
  const absl::Status refusal =
      session_with(OpClass::kOptimizerState, at::kBFloat16).status();
  EXPECT_THAT(
      std::string(refusal.message()),
      testing::HasSubstr("master weights and moments of the same dtype"));
}

// Freezing the rest leaves the gradient of the head as it is.
TEST(SessionTest, TheHeadTrainsAlone) {
  const auto whole = Toy("configs/tiny_cpu.pbtxt");
  const Batch batch = whole->train_loader().Load(0).value();
  ASSERT_TRUE(whole->step().ForwardBackward(batch).ok());
  const auto head_of = [](Session& session) {
    return session.state()
        .parameters->Get("lm_head.weight")
        .grad()
        .detach()
        .clone();
  };
  const at::Tensor expected = head_of(*whole);
  const double norm = expected.norm().item<double>();
  ASSERT_GT(norm, 0);
  for (const std::string storage : {"ALLOCATOR", "ARENA"}) {
    SCOPED_TRACE(storage);
    const auto session = Toy("configs/tiny_cpu.pbtxt",
                             {"model.frozen=['token*', 'layers.*', 'ln*']",
                              "execution.storage=" + storage});
    ASSERT_TRUE(session->step().ForwardBackward(batch).ok());
    EXPECT_TRUE(at::equal(head_of(*session), expected));
    const std::vector<double> losses = Train(*session, 1);
    EXPECT_NEAR(session->step().metrics().grad_norm.item<double>(), norm,
                1e-5 * norm);
    EXPECT_LT(Train(*session, 20).back(), losses[0]);
  }
}

TEST(SessionTest, RefusesToTrainNothing) {
  const RunConfig config =
      ToyConfig("configs/tiny_cpu.pbtxt", {"model.frozen=['*']"});
  const absl::Status status = PlanRun(config, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("model.frozen: leaves nothing to train"));
}

TEST(MemoryPlanTest, RecomputationDropsActivationsAndKeepsTheRest) {
  auto plan = [](const std::string& policy) {
    return PlanRun(LoadRunConfig(
                       {"configs/small.pbtxt"},
                       {"training.device=CPU", "recompute.policy=" + policy})
                       .value(),
                   {})
        .value()
        .memory.report;
  };
  const MemoryReport none = plan("NONE");
  EXPECT_EQ(none.parameters, 4 * 128'625'408);
  EXPECT_EQ(none.optimizer, 8 * 128'625'408);
  EXPECT_LT(plan("FFN").activations, none.activations);
  EXPECT_LT(plan("BLOCK").activations, plan("ATTENTION").activations);
  EXPECT_LT(plan("BLOCK").activations, plan("FFN").activations);
  EXPECT_EQ(plan("BLOCK").optimizer, none.optimizer);

  RunConfig small =
      LoadRunConfig({"configs/small.pbtxt"}, {"training.device=CPU"}).value();
  const auto text_of = [&](int64_t tokens, int64_t texts = 1) {
    return PlanGeneration(small, {.tokens = tokens, .texts = texts})
        .value()
        .memory.report;
  };
  const MemoryReport generation = text_of(1 << 20);
  small.mutable_optimizer()->mutable_muon();  // of training only
  EXPECT_EQ(text_of(1 << 20).total(), generation.total());
  EXPECT_EQ(generation.parameters, none.parameters);
  EXPECT_EQ(generation.gradients, 0);
  EXPECT_EQ(generation.optimizer, 0);
  EXPECT_LT(generation.total() - generation.parameters,
            none.activations + none.activation_gradients);
  // A generation keeps no gradients, and of BF16 weights only what ops read.
  RunConfig bf16 = small;
  bf16.mutable_precision()->set_mode(PrecisionConfig::BF16);
  bf16.mutable_model()->set_num_layers(1);
  const RunPlan half = PlanGeneration(bf16, {.tokens = 64}).value();
  const auto store = MakeParameters(half).value();
  EXPECT_EQ(store->grad().numel(), 0);
  int64_t kept = 0;
  for (const at::Tensor& buffer : store->weights().Defined()) {
    kept += static_cast<int64_t>(buffer.nbytes());
  }
  EXPECT_EQ(kept, half.memory.report.parameters + half.memory.report.shadow);
  EXPECT_LT(kept, 3 * half.num_parameters);
  // What a text needs depends on its tokens, not on the context.
  EXPECT_LT(text_of(64).activations, generation.activations);
  EXPECT_GT(text_of(64, 8).activations, 7 * text_of(64).activations);
  const int64_t short_text = text_of(64).total();
  small.mutable_model()->set_context_length(2147483647);
  EXPECT_EQ(text_of(64).total(), short_text);
  // Longer texts take more keys and values, not more activations.
  EXPECT_EQ(text_of(6400).activations, text_of(64).activations);
  EXPECT_EQ(text_of(6400).total() - short_text,
            (6400 - 64) * small.model().num_layers() * 2 *
                small.model().d_model() * int64_t{sizeof(float)});
  const absl::Status too_long =
      PlanGeneration(small, {.tokens = 2147483647}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(too_long)) << too_long;
  EXPECT_THAT(std::string(too_long.message()),
              testing::AllOf(
                  testing::HasSubstr("generating 1 text of 2147483647 tokens, "
                                     "prompt included, needs about "),
                  testing::HasSubstr("  a smaller --max_tokens or --samples, "
                                     "or a shorter prompt\n"),
                  testing::HasSubstr("half the size: --precision=BF16\n")));
  const absl::Status halved =
      PlanGeneration(bf16, {.tokens = 2147483647, .texts = 1 << 20}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(halved)) << halved;
  EXPECT_THAT(std::string(halved.message()),
              testing::Not(testing::HasSubstr("--precision")));
}

// Blocks are multiples of the store's alignment, so that there is no padding.
TEST(MemoryPlanTest, MatchesTheStoreAndTheOptimizer) {
  for (const std::vector<std::string>& sets :
       std::vector<std::vector<std::string>>{
           {"precision.mode=FP32"},
           {"precision.mode=BF16"},
           {"precision.mode=BF16", "training.micro_batches=2"},
           {"precision.mode=BF16", "precision.fp32_gradients=true"},
           {"precision.mode=BF16_PURE"},
           {"precision.mode=BF16", "model.tied_head=true"},
           {"precision.mode=BF16", "model.frozen=['layers.0.*']"},
           {"precision.mode=BF16", "optimizer.muon.ns_steps=5"},
           {"precision.mode=FP32", "optimizer.muon.normuon_beta2=0.9"},
           {"precision.mode=BF16_PURE", "optimizer.ema.decay=0.9"},
           {"precision.mode=BF16", "optimizer.ema.decay=0.9",
            "optimizer.muon.ns_steps=5", "model.frozen=['layers.0.*']"}}) {
    SCOPED_TRACE(absl::StrJoin(sets, " "));
    std::vector<std::string> all = {"model.d_model=128"};
    all.insert(all.end(), sets.begin(), sets.end());
    const auto session = Toy("configs/tiny_cpu.pbtxt", all);
    const MemoryReport& plan = session->plan().memory.report;
    const ParameterStore& store = *session->state().parameters;
    const auto bytes = [](const at::Tensor& buffer) {
      return buffer.defined() ? static_cast<int64_t>(buffer.nbytes()) : 0;
    };
    const WeightBuffers& weights = store.weights();
    const Optimizer& adamw = *session->state().optimizer;
    const int64_t moments =
        adamw.exp_avg().nbytes() + adamw.exp_avg_sq().nbytes();
    EXPECT_EQ(plan.parameters,
              bytes(weights.master) + bytes(weights.high) + bytes(weights.low));
    EXPECT_EQ(plan.shadow, bytes(weights.shadow));
    EXPECT_EQ(plan.gradients, store.grad().nbytes());
    const Ema* const ema = adamw.ema();
    EXPECT_EQ(plan.optimizer,
              moments + (ema == nullptr ? 0 : bytes(ema->average())));
  }
}

// Every micro-batch's ids and targets are on the device during a step.
TEST(MemoryPlanTest, CountsTheWholeBatchAndTheConstants) {
  for (const int micro_batches : {1, 2, 4}) {
    SCOPED_TRACE(micro_batches);
    const auto session =
        Toy("configs/tiny_cpu.pbtxt",
            {absl::StrCat("training.micro_batches=", micro_batches)});
    const RunPlan& plan = session->plan();
    const Batch batch = session->train_loader().Load(0).value();
    int64_t bytes = static_cast<int64_t>(batch.ids_mbs.nbytes() +
                                         batch.targets_mbs.nbytes());
    const Program& program = plan.step->loss.program;
    EXPECT_FALSE(program.constants().empty());
    for (const ProgramConstant& constant : program.constants()) {
      bytes += program.info(constant.value).type.bytes();
    }
    EXPECT_EQ(plan.memory.report.other, bytes);
  }
}

// Blocks are multiples of the store's alignment here, too.
TEST(MemoryPlanTest, Bf16TakesFourBytesPerWeight) {
  const auto plan = [](const std::string& tied) {
    return PlanRun(ToyConfig("configs/tiny_cpu.pbtxt",
                             {"model.d_model=128", "precision.mode=BF16",
                              "model.tied_head=" + tied}),
                   {})
        .value();
  };
  const RunPlan untied = plan("false");
  EXPECT_EQ(untied.memory.report.parameters, 4 * untied.num_parameters);
  EXPECT_EQ(untied.memory.report.shadow, 0);
  // The embedding's table is read in FP32, and as the head in BF16.
  const RunPlan tied = plan("true");
  EXPECT_EQ(tied.memory.report.parameters, 4 * tied.num_parameters);
  EXPECT_EQ(tied.memory.report.shadow,
            2 * tied.shape.vocab * tied.shape.d_model);
}

// AdamW's row: gradient, weights and moments.
TEST(StepRowsTest, CountTheBytesOfTheOptimizer) {
  const auto bytes_per_weight = [](const std::vector<std::string>& sets) {
    std::vector<std::string> all = {"model.d_model=128"};
    all.insert(all.end(), sets.begin(), sets.end());
    const RunPlan plan =
        PlanRun(ToyConfig("configs/tiny_cpu.pbtxt", all), {}).value();
    const StepRow row = RowsOfStep(plan).back();
    EXPECT_EQ(row.kind, "adamw");
    int64_t trained = 0;
    for (const ParameterBlockSpec& block : plan.parameters) {
      if (block.trainable) trained += CountParameters(block);
    }
    return static_cast<double>(row.cost.bytes) / static_cast<double>(trained);
  };
  EXPECT_EQ(bytes_per_weight({"precision.mode=FP32"}), 28);
  EXPECT_EQ(bytes_per_weight({"precision.mode=BF16"}), 26);
  EXPECT_EQ(bytes_per_weight(
                {"precision.mode=BF16", "precision.fp32_gradients=true"}),
            28);
  EXPECT_EQ(
      bytes_per_weight({"precision.mode=BF16", "model.frozen=['layers.0.*']"}),
      26);
  EXPECT_EQ(bytes_per_weight({"precision.mode=BF16_PURE"}), 14);
}

// Each of four ranks sends and receives 2 * 3/4 of the gradients.
TEST(StepRowsTest, CountTheBytesOfTheReduction) {
  const auto reductions = [](int ranks) {
    WorldInfo world;
    world.world_size = world.local_world_size = ranks;
    const RunPlan plan =
        PlanRun(ToyConfig("configs/tiny_cpu.pbtxt"), world).value();
    int64_t moved = 0;
    for (const StepRow& row : RowsOfStep(plan)) {
      if (row.kind != "reduce_scatter, all_gather") continue;
      moved += row.count * row.cost.bytes;
    }
    return static_cast<double>(moved) /
           static_cast<double>(plan.memory.report.gradients);
  };
  EXPECT_EQ(reductions(1), 0);
  EXPECT_NEAR(reductions(4), 3, 1e-3);
}

TEST(MemoryPlanTest, RanksOfAMachineShareItsMemory) {
  const RunConfig config = ToyConfig("configs/tiny_cpu.pbtxt");
  WorldInfo two;
  two.world_size = two.local_world_size = 2;
  EXPECT_EQ(PlanRun(config, two)->memory.report.capacity,
            *PlanRun(config, {})->memory.report.capacity / 2);
}

TEST(RunPlanTest, CountsOnlyTheTrainedPart) {
  const auto plan = [](const std::string& frozen) {
    return PlanRun(LoadRunConfig(
                       {"configs/small.pbtxt"},
                       {"training.device=CPU", "model.frozen=[" + frozen + "]"})
                       .value(),
                   {})
        .value();
  };
  constexpr int64_t kHead = 10000 * 768, kTokens = 4 * 512;
  constexpr int64_t kNorms = 25 * 768;
  constexpr double kMultiplied = 128'625'408 - kHead - kNorms;
  constexpr double kAttention = 12.0 * 768 * 512;  // layers, width, context
  const RunPlan all = plan("");
  EXPECT_EQ(all.flops_per_token, 6 * kMultiplied + 6 * kAttention);

  const RunPlan head = plan("'token_*', 'layers.*', 'ln_final.weight'");
  EXPECT_EQ(head.memory.report.parameters, all.memory.report.parameters);
  EXPECT_EQ(head.memory.report.gradients, 4 * kHead);
  EXPECT_EQ(head.memory.report.optimizer, 8 * kHead);
  // The norm's result.
  EXPECT_EQ(KeptBytes(head.step->train, head.step->train_lifetimes),
            4 * kTokens * 768);
  // Forward, and the gradient of one matrix.
  EXPECT_EQ(head.flops_per_token, 2 * kMultiplied + 2 * kHead + 2 * kAttention);

  // Grouped key heads reduce parameters but not attention.
  const RunPlan grouped =
      PlanRun(LoadRunConfig({"configs/small.pbtxt"},
                            {"training.device=CPU", "model.num_kv_heads=4"})
                  .value(),
              {})
          .value();
  constexpr double kLeftOut = 12 * 2 * (12 - 4) * 64.0 * 768;
  EXPECT_EQ(grouped.flops_per_token, all.flops_per_token - 6 * kLeftOut);

  const RunPlan half = plan("'token_*', 'layers.0.*', 'layers.1.*'");
  EXPECT_LT(half.flops_per_token, all.flops_per_token);
  EXPECT_GT(half.flops_per_token, head.flops_per_token);
}

TEST(RunPlanTest, RecomputationIsNotTheModelsWork) {
  const auto plan = [](const std::string& policy) {
    return PlanRun(ToyConfig("configs/tiny_cpu.pbtxt",
                             {"recompute.policy=" + policy}),
                   {})
        .value();
  };
  const RunPlan none = plan("NONE");
  for (const std::string policy : {"ATTENTION", "FFN", "BLOCK"}) {
    const RunPlan recomputed = plan(policy);
    EXPECT_EQ(recomputed.flops_per_token, none.flops_per_token) << policy;
    EXPECT_GT(recomputed.step->train.runs.size(), none.step->train.runs.size());
  }
}

}  // namespace
}  // namespace tessera
