// The table, its choice, its documentation; the autograd node.

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/ATen.h"
#include "attention_backends/attention_backend.h"
#include "attention_backends/attention_op.h"
#include "attention_backends/auto_order.h"
#include "attention_backends/backend_table.h"
#include "attention_backends/support_table.h"
#include "framework/base/torch_status.h"
#include "framework/program/executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attention_backends/attention_as_function.h"
#include "tests/attention_backends/attention_oracle.h"
#include "tests/testing/gradcheck.h"
#include "torch/csrc/autograd/autograd.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Refuses everything but head dims that are multiples of 64.
class PickyBackend final : public AttentionBackend {
 public:
  absl::string_view name() const override { return "PICKY"; }
  absl::Status Supports(const AttentionProblem& problem) const override {
    if (problem.deterministic) {
      return absl::UnimplementedError("adds dQ in no fixed order");
    }
    if (problem.d % 64 != 0) {
      return absl::UnimplementedError("head dim must be a multiple of 64");
    }
    return absl::OkStatus();
  }
  AttentionMemory Plan(const AttentionProblem&) const override {
    return {
        .saved_bytes = 1 << 20, .forward_bytes = 0, .backward_bytes = 2 << 20};
  }
  absl::Status Forward(const AttentionArgs&, AttentionOut*) const override {
    return absl::ResourceExhaustedError("picky: no memory");
  }
  absl::Status Backward(const AttentionArgs&, const AttentionOut&,
                        const at::Tensor&, AttentionGrads*) const override {
    return absl::OkStatus();
  }
};

const AttentionBackend* Naive() { return FindBackend("NAIVE"); }

AttentionProblem Problem() {
  AttentionProblem problem;
  problem.b = 2;
  problem.s = problem.t = 128;
  problem.h = 4;
  problem.g = 2;
  problem.d = 80;
  return problem;
}

AttentionConfig Config(AttentionConfig::Backend backend) {
  AttentionConfig config;
  config.set_backend(backend);
  return config;
}

TEST(BackendTable, PrefersFusedKernelsAndComparesLast) {
  std::vector<std::string> names;
  for (const AttentionBackend* backend : AttentionBackends()) {
    names.emplace_back(backend->name());
  }
  EXPECT_THAT(names, ElementsAre("FLASH_CUDA", "TORCH_CUDNN", "TORCH_FLASH",
                                 "TORCH_EFFICIENT", "COMPILED_FUSED", "NAIVE",
                                 "FLASH_TILED"));
}

TEST(BackendTable, KernelsForGpusRefuseACpu) {
  for (const char* name :
       {"FLASH_CUDA", "TORCH_CUDNN", "TORCH_FLASH", "TORCH_EFFICIENT"}) {
    AttentionProblem problem = Problem();
    problem.dtype = at::kBFloat16;
    EXPECT_FALSE(FindBackend(name)->Supports(problem).ok()) << name;
  }
}

// A problem that LibTorch's kernels run.
AttentionProblem GpuProblem() {
  AttentionProblem problem = Problem();
  problem.dtype = at::kBFloat16;
  problem.cuda = true;
  problem.compute_capability = 90;
  return problem;
}

struct Refusal {
  const char* backend;
  void (*change)(AttentionProblem*);
  const char* reason;
};

class TorchKernels : public ::testing::TestWithParam<Refusal> {};

TEST_P(TorchKernels, SayWhatTheyCannotDo) {
  const AttentionBackend* backend = FindBackend(GetParam().backend);
  AttentionProblem problem = GpuProblem();
  ASSERT_TRUE(backend->Supports(problem).ok());
  GetParam().change(&problem);
  const absl::Status refusal = backend->Supports(problem);
  EXPECT_EQ(refusal.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refusal.message()), HasSubstr(GetParam().reason));
}

// 2^31 and a sequence more, padded.
void HaveManyGradients(AttentionProblem* p) {
  p->h = p->g = 256;
  p->s = p->t = 127;
  p->b = 1025;
  p->d = 64;
}

constexpr Refusal kRefusals[] = {
    {"TORCH_FLASH", [](AttentionProblem* p) { p->dtype = at::kFloat; },
     "computes in BFloat16, Half, not in Float"},
    {"TORCH_CUDNN", [](AttentionProblem* p) { p->dtype = at::kFloat; },
     "computes in BFloat16, Half, not in Float"},
    {"TORCH_EFFICIENT", [](AttentionProblem* p) { p->dtype = at::kDouble; },
     "computes in Float, BFloat16, Half, not in Double"},
    {"TORCH_FLASH", [](AttentionProblem* p) { p->compute_capability = 75; },
     "needs compute capability 8.0, this GPU has 7.5"},
    {"TORCH_FLASH", [](AttentionProblem* p) { p->d = 264; },
     "a multiple of 8 and at most 256, not 264"},
    {"TORCH_CUDNN", [](AttentionProblem* p) { p->d = 136; },
     "a multiple of 8 and at most 128, not 136"},
    {"TORCH_EFFICIENT", [](AttentionProblem* p) { p->d = 4; },
     "a multiple of 8 and at most 256, not 4"},
    {"TORCH_FLASH",
     [](AttentionProblem* p) {
       p->compute_capability = 89;
       p->d = 224;
     },
     "needs compute capability 8.0 or 9.0 to train with head dim 224"},
    {"TORCH_FLASH", [](AttentionProblem* p) { p->s = 129; },
     "129 queries over 128 keys leave some without"},
    {"TORCH_EFFICIENT", [](AttentionProblem* p) { p->s = 129; },
     "129 queries over 128 keys leave some without"},
    {"TORCH_CUDNN", [](AttentionProblem* p) { p->s = 127; },
     "aligns a causal mask at the top left"},
    {"TORCH_CUDNN", [](AttentionProblem* p) { p->s = p->t = 1; },
     "needs more than one key"},
    {"TORCH_CUDNN", [](AttentionProblem* p) { p->b = 65536; },
     "takes at most 65535 sequences and heads, not 65536 and 4"},
    {"TORCH_FLASH", [](AttentionProblem* p) { p->b = 65536; },
     "takes at most 65535 sequences and heads, not 65536 and 4"},
    {"TORCH_EFFICIENT", [](AttentionProblem* p) { p->h = p->g = 65536; },
     "takes at most 65535 sequences and heads, not 2 and 65536"},
    {"TORCH_FLASH", HaveManyGradients,
     "takes at most 2147483648 elements of dQ in training, rows padded to 128 "
     "and head dims to 64, not 2149580800"},
    {"TORCH_CUDNN", HaveManyGradients,
     "takes at most 2147483648 elements of dQ in training"},
    {"TORCH_FLASH", [](AttentionProblem* p) { p->deterministic = true; },
     "adds up dQ in no fixed order"},
    {"TORCH_CUDNN", [](AttentionProblem* p) { p->deterministic = true; },
     "adds up dQ in no fixed order"},
};
INSTANTIATE_TEST_SUITE_P(Each, TorchKernels, ::testing::ValuesIn(kRefusals));

// Backends are deterministic forward; only gradients are added up by atomics.
TEST(TorchKernels, RunDeterministicallyWithoutGradients) {
  AttentionProblem problem = GpuProblem();
  problem.deterministic = true;
  problem.needs_grad = false;
  EXPECT_TRUE(FindBackend("TORCH_FLASH")->Supports(problem).ok());
  EXPECT_TRUE(FindBackend("TORCH_CUDNN")->Supports(problem).ok());
}

TEST(TorchKernels, TakeTwoToThe31Gradients) {
  AttentionProblem problem = GpuProblem();
  HaveManyGradients(&problem);
  for (const char* name : {"TORCH_FLASH", "TORCH_CUDNN"}) {
    const AttentionBackend* backend = FindBackend(name);
    problem.b = 1024;
    EXPECT_TRUE(backend->Supports(problem).ok()) << name;
    problem.b = 1025;
    EXPECT_FALSE(backend->Supports(problem).ok()) << name;
    problem.needs_grad = false;
    EXPECT_TRUE(backend->Supports(problem).ok()) << name;
    problem.needs_grad = true;
  }
}

TEST(BackendTable, EveryNameIsOneOfTheConfigs) {
  for (const AttentionBackend* backend : AttentionBackends()) {
    AttentionConfig::Backend parsed;
    EXPECT_TRUE(
        AttentionConfig::Backend_Parse(std::string(backend->name()), &parsed))
        << backend->name();
  }
}

TEST(SelectBackend, NamedBackendRuns) {
  const auto choice = SelectBackend(Config(AttentionConfig::NAIVE), Problem());
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->backend->name(), "NAIVE");
  EXPECT_EQ(choice->reason, "NAIVE, as configured");
}

AttentionConfig NaiveHolding(int score_tensors) {
  AttentionConfig config = Config(AttentionConfig::NAIVE);
  config.mutable_naive()->set_held_score_tensors(score_tensors);
  return config;
}

TEST(SelectBackend, NaiveHoldsWhatTheConfigSays) {
  constexpr const char* kReasons[] = {
      "NAIVE, as configured",
      "NAIVE, as configured, with a library softmax: holds 2 score tensors for "
      "backward",
      "NAIVE, as configured, with a hand-written softmax: holds 3 score "
      "tensors "
      "for backward"};
  const AttentionProblem problem = Problem();
  const int64_t scores = problem.b * problem.h * problem.s * problem.t * 4;
  for (int held = 1; held <= 3; ++held) {
    const auto choice = SelectBackend(NaiveHolding(held), problem);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->backend->name(), "NAIVE");
    EXPECT_EQ(choice->reason, kReasons[held - 1]);
    const int64_t o = problem.b * problem.h * problem.s * problem.d * 4;
    EXPECT_EQ((choice->backend->Plan(problem).saved_bytes - o) / scores, held);
  }
  EXPECT_EQ(SelectBackend(NaiveHolding(1), problem)->backend, Naive());
  EXPECT_EQ(SelectBackend(NaiveHolding(4), problem).status(),
            absl::InvalidArgumentError("attention.naive.held_score_tensors "
                                       "must be 1, 2 or 3; is 4"));
}

TEST(SelectBackend, NamedBackendThatCannotRunSaysWhyAndWhatWould) {
  AttentionProblem problem = Problem();
  problem.dtype = at::kInt;
  const auto choice = SelectBackend(Config(AttentionConfig::NAIVE), problem);
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(choice.status().message(),
            "attention backend NAIVE does not support causal attention, batch "
            "2, lengths 128 x 128, heads 4/2, head dim 80, Int, with "
            "gradients, on a CPU: computes in Float, Double, BFloat16 or Half, "
            "not in Int: change precision; would run: none");
}

TEST(SelectBackend, RefusalListsBackendsThatWouldRun) {
  const PickyBackend picky;
  const AttentionBackend* const table[] = {&picky};
  AttentionProblem problem = Problem();
  problem.d = 64;
  const auto choice =
      SelectBackend(Config(AttentionConfig::NAIVE), problem, table);
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(choice.status().message()),
              HasSubstr("not part of this build; would run: PICKY"));
}

TEST(SelectBackend, AutoSaysWhyNotTheOnesBefore) {
  const PickyBackend picky;
  const AttentionBackend* const table[] = {&picky, Naive()};
  const auto choice =
      SelectBackend(Config(AttentionConfig::AUTO), Problem(), table);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->backend, Naive());
  EXPECT_EQ(choice->reason,
            "AUTO chose NAIVE; not PICKY (head dim must be a multiple of 64)");
}

TEST(SelectBackend, AutoNamesEqualRefusalsTogether) {
  const PickyBackend picky;
  const AttentionBackend* const table[] = {&picky, &picky, Naive()};
  const auto choice =
      SelectBackend(Config(AttentionConfig::AUTO), Problem(), table);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->reason,
            "AUTO chose NAIVE; not PICKY, PICKY (head dim must be a multiple "
            "of 64)");
}

TEST(SelectBackend, AutoTakesTheFirst) {
  const PickyBackend picky;
  const AttentionBackend* const table[] = {&picky, Naive()};
  AttentionProblem problem = Problem();
  problem.d = 64;
  const auto choice =
      SelectBackend(Config(AttentionConfig::AUTO), problem, table);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->backend, &picky);
}

TEST(SelectBackend, AutoGoesByWhatWasMeasured) {
  const struct {
    int capability;
    at::ScalarType dtype;
    int64_t d, t;
    MaskKind mask;
    const char* first;
  } cases[] = {
      {90, at::kBFloat16, 128, 4096, MaskKind::kFull, "FLASH_CUDA"},
      {90, at::kBFloat16, 136, 4096, MaskKind::kCausal, "FLASH_CUDA"},
      {90, at::kBFloat16, 136, 4096, MaskKind::kFull, "TORCH_FLASH"},
      {90, at::kBFloat16, 160, 8192, MaskKind::kFull, "FLASH_CUDA"},
      {90, at::kBFloat16, 192, 2048, MaskKind::kFull, "FLASH_CUDA"},
      {90, at::kBFloat16, 192, 4096, MaskKind::kCausal, "TORCH_FLASH"},
      {90, at::kBFloat16, 224, 8192, MaskKind::kCausal, "FLASH_CUDA"},
      {90, at::kBFloat16, 256, 2048, MaskKind::kCausal, "FLASH_CUDA"},
      {90, at::kBFloat16, 256, 4096, MaskKind::kCausal, "TORCH_FLASH"},
      {90, at::kBFloat16, 256, 1024, MaskKind::kFull, "FLASH_CUDA"},
      {90, at::kBFloat16, 256, 2048, MaskKind::kFull, "TORCH_FLASH"},
      {90, at::kHalf, 256, 8192, MaskKind::kCausal, "TORCH_FLASH"},
      {90, at::kFloat, 64, 4096, MaskKind::kFull, "FLASH_CUDA"},
      {90, at::kFloat, 128, 128, MaskKind::kFull, "FLASH_CUDA"},
      {90, at::kFloat, 128, 1024, MaskKind::kCausal, "FLASH_CUDA"},
      {90, at::kFloat, 128, 512, MaskKind::kFull, "TORCH_EFFICIENT"},
      {90, at::kFloat, 128, 2048, MaskKind::kCausal, "TORCH_EFFICIENT"},
      {90, at::kFloat, 256, 128, MaskKind::kCausal, "FLASH_CUDA"},
      {90, at::kFloat, 256, 128, MaskKind::kFull, "TORCH_EFFICIENT"},
      {80, at::kBFloat16, 64, 1024, MaskKind::kCausal, "TORCH_FLASH"},
      {100, at::kFloat, 64, 1024, MaskKind::kCausal, "TORCH_EFFICIENT"}};
  for (const auto& c : cases) {
    AttentionProblem problem = Problem();
    problem.cuda = true;
    problem.compute_capability = c.capability;
    problem.dtype = c.dtype;
    problem.d = c.d;
    problem.s = problem.t = c.t;
    problem.mask = c.mask;
    const AutoOrder order = AutoOrderFor(problem, AttentionBackends());
    EXPECT_EQ(order.backends.size(), AttentionBackends().size());
    EXPECT_EQ(order.backends[0]->name(), c.first);
    EXPECT_EQ(order.reason.empty(),
              order.backends[0] == AttentionBackends()[0]);
  }
}

// A deterministic backward of TORCH_EFFICIENT has a block for each head.
TEST(AutoOrderFor, DeterministicGradientsWantManyHeads) {
  AttentionProblem problem = GpuProblem();
  problem.dtype = at::kFloat;
  problem.d = 128;
  problem.s = problem.t = 8192;
  problem.b = 2;
  problem.h = problem.g = 16;
  const auto first = [&] {
    return AutoOrderFor(problem, AttentionBackends()).backends[0]->name();
  };
  EXPECT_EQ(first(), "TORCH_EFFICIENT");
  problem.deterministic = true;
  EXPECT_EQ(first(), "FLASH_CUDA");
  problem.b = 8;
  EXPECT_EQ(first(), "TORCH_EFFICIENT");
  problem.b = 2;
  problem.needs_grad = false;
  EXPECT_EQ(first(), "TORCH_EFFICIENT");
}

TEST(SelectBackend, DeterministicProblemRefusesAtomics) {
  const PickyBackend picky;
  const AttentionBackend* const table[] = {&picky, Naive()};
  AttentionProblem problem = Problem();
  problem.d = 64;
  problem.deterministic = true;
  const auto choice =
      SelectBackend(Config(AttentionConfig::AUTO), problem, table);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->backend, Naive());
  EXPECT_THAT(choice->reason, HasSubstr("adds dQ in no fixed order"));
}

TEST(SelectBackend, AutoWithoutAnyListsEveryReason) {
  const PickyBackend picky;
  const AttentionBackend* const table[] = {&picky};
  const auto choice =
      SelectBackend(Config(AttentionConfig::AUTO), Problem(), table);
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(choice.status().message()),
              HasSubstr("PICKY (head dim must be a multiple of 64)"));
}

TEST(SelectBackend, RefusesMalformedProblems) {
  AttentionProblem problem = Problem();
  problem.g = 3;
  auto choice = SelectBackend(AttentionConfig(), problem);
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(choice.status().message()), HasSubstr("4 and 3"));
  problem.g = 0;
  choice = SelectBackend(AttentionConfig(), problem);
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kInvalidArgument);
  choice = SelectBackend(Config(AttentionConfig::UNSPECIFIED), Problem());
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(choice.status().message()), HasSubstr("NAIVE"));
}

TEST(SupportTable, IsTheOneInTheDocs) {
  std::ifstream file("docs/attention_backends.md");
  ASSERT_TRUE(file.good());
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_THAT(page.str(), HasSubstr(SupportTable(AttentionBackends())))
      << "Put this table into docs/attention_backends.md.";
}

TEST(SupportTable, ShowsWhatABackendRefuses) {
  const PickyBackend picky;
  const AttentionBackend* const table[] = {&picky};
  EXPECT_THAT(SupportTable(table),
              HasSubstr("| 64, 128, 192, 256 | yes | yes | yes | no | "
                        "1 + 0 + 2 |\n"));
}

// SelfAttention.

constexpr int64_t kHeads = 4, kKvHeads = 2;
constexpr double kScale = 0.4;

at::Tensor RandomQkv(at::ScalarType dtype) {
  at::manual_seed(7);
  return at::randn({2, 5, kHeads + 2 * kKvHeads, 8}, dtype);
}

SelfAttentionSpec Spec(const AttentionBackend* backend, const at::Tensor& qkv,
                       MaskKind mask = MaskKind::kCausal) {
  return testing::SpecFor(*backend, qkv, kKvHeads, kScale, mask);
}

// The same by ATen: the gradient of sum(O o dO) with respect to qkv.
testing::AttentionResults Eager(const at::Tensor& qkv, const at::Tensor& d_o,
                                const SelfAttentionSpec& spec) {
  const at::Tensor heads = qkv.detach().transpose(1, 2);
  const int64_t h = kHeads, g = kKvHeads;
  testing::AttentionInputs in;
  in.q = heads.narrow(1, 0, h);
  in.k = heads.narrow(1, h, g);
  in.v = heads.narrow(1, h + g, g);
  in.d_o = d_o.transpose(1, 2);
  in.scale = spec.scale;
  in.causal = spec.problem.mask == MaskKind::kCausal;
  return testing::EagerAttention(in, qkv.scalar_type());
}

class SelfAttentionOf
    : public ::testing::TestWithParam<std::tuple<const char*, MaskKind>> {
 protected:
  SelfAttentionSpec spec() const {
    return Spec(FindBackend(std::get<0>(GetParam())), RandomQkv(at::kDouble),
                std::get<1>(GetParam()));
  }
};
INSTANTIATE_TEST_SUITE_P(
    All, SelfAttentionOf,
    ::testing::Combine(::testing::Values("NAIVE", "FLASH_TILED"),
                       ::testing::Values(MaskKind::kCausal, MaskKind::kFull)));

TEST_P(SelfAttentionOf, AgreesWithAtenAutograd) {
  const SelfAttentionSpec spec = this->spec();
  const at::Tensor qkv = RandomQkv(at::kDouble).set_requires_grad(true);
  const at::Tensor o = testing::SelfAttention(qkv, spec);
  EXPECT_TRUE(o.is_contiguous());
  const at::Tensor d_o = at::randn_like(o);
  torch::autograd::backward({o}, {d_o});
  const testing::AttentionResults eager = Eager(qkv, d_o, spec);
  EXPECT_TRUE(at::allclose(o, eager.o.transpose(1, 2), 1e-12, 1e-12));
  const at::Tensor grad = at::cat({eager.dq, eager.dk, eager.dv}, 1);
  EXPECT_TRUE(at::allclose(qkv.grad(), grad.transpose(1, 2), 1e-12, 1e-12));
}

TEST_P(SelfAttentionOf, AgreesWithFiniteDifferences) {
  const SelfAttentionSpec spec = this->spec();
  testing::GradcheckCase check;
  check.fn = [&spec](const std::vector<at::Tensor>& inputs) {
    return testing::SelfAttention(inputs[0], spec);
  };
  check.inputs = {RandomQkv(at::kDouble)};
  EXPECT_TRUE(testing::Gradcheck(check));
}

TEST(SelfAttention, HandsABackendsStatusThrough) {
  const PickyBackend picky;
  const at::Tensor qkv = RandomQkv(at::kFloat);
  const SelfAttentionSpec spec = Spec(&picky, qkv);
  const absl::Status status =
      StatusFromTorch([&] { testing::SelfAttention(qkv, spec); });
  EXPECT_EQ(status, absl::ResourceExhaustedError("picky: no memory"));
}

// Writes down the phases it is told of.
class PhaseLog final : public PhaseObserver {
 public:
  void Begin(absl::string_view segment) override {
    log_.append(segment.data(), segment.size()).append("(");
  }
  void End() override { log_ += ")"; }
  const std::string& log() const { return log_; }

 private:
  std::string log_;
};

TEST(SelfAttention, ReportsItsPhases) {
  const at::Tensor qkv = RandomQkv(at::kFloat);
  ProgramBuilder b({.precision = PrecisionPolicy::Uniform(at::kFloat)});
  const Value in = b.Input("qkv", {qkv.sizes().vec(), at::kFloat});
  b.Output(SelfAttention(b, in, Spec(Naive(), qkv)));
  const Program program = std::move(b).Build().value();
  const Schedule schedule = ForwardSchedule(program);
  const auto store = ParameterStore::Create({}, {}).value();
  PhaseLog phases;
  Executor executor(schedule, PlanLifetimes(schedule), *store, &phases);
  executor.SetInput(in, qkv);
  executor.RunForward();
  EXPECT_EQ(phases.log(), "scores()softmax()values()");
}

}  // namespace
}  // namespace tessera
