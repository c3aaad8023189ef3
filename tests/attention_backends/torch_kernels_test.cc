// Problems that LibTorch's attention kernels refuse.

#include <cstdint>
#include <string>

#include "attention_backends/attention_backend.h"
#include "attention_backends/backend_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attention_backends/picky_backend.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using testing::SmallProblem;

// A problem that LibTorch's kernels run.
AttentionProblem GpuProblem() {
  AttentionProblem problem = SmallProblem();
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

TEST_P(TorchKernels, SayWhyTheyRefuse) {
  const AttentionBackend* backend = FindBackend(GetParam().backend);
  AttentionProblem problem = GpuProblem();
  ASSERT_TRUE(backend->Supports(problem).ok());
  GetParam().change(&problem);
  const absl::Status refusal = backend->Supports(problem);
  EXPECT_EQ(refusal.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refusal.message()), HasSubstr(GetParam().reason));
}

// Padded, one sequence more than 2^31.
void HaveManyGradients(AttentionProblem* p) {
  p->h = p->g = 256;
  p->s = p->t = 127;
  p->b = 1025;
  p->d = 64;
}

constexpr Refusal kRefusals[] = {
    {"TORCH_FLASH", [](AttentionProblem* p) { p->dtype = at::kFloat; },
     "computes in BFloat16 or Half, not in Float"},
    {"TORCH_CUDNN", [](AttentionProblem* p) { p->dtype = at::kFloat; },
     "computes in BFloat16 or Half, not in Float"},
    {"TORCH_EFFICIENT", [](AttentionProblem* p) { p->dtype = at::kDouble; },
     "computes in Float, BFloat16 or Half, not in Double"},
    {"TORCH_FLASH", [](AttentionProblem* p) { p->compute_capability = 75; },
     "needs compute capability 8.0 or newer; this GPU has 7.5"},
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
     "some of 129 queries over 128 keys see none"},
    {"TORCH_EFFICIENT", [](AttentionProblem* p) { p->s = 129; },
     "some of 129 queries over 128 keys see none"},
    {"TORCH_CUDNN", [](AttentionProblem* p) { p->s = 127; },
     "aligns a causal mask at the top left"},
    {"TORCH_CUDNN", [](AttentionProblem* p) { p->s = p->t = 1; },
     "needs more than one key"},
    {"TORCH_CUDNN", [](AttentionProblem* p) { p->b = 65536; },
     "supports at most 65535 sequences and as many heads, not 65536 and 4"},
    {"TORCH_FLASH", [](AttentionProblem* p) { p->b = 65536; },
     "supports at most 65535 sequences and as many heads, not 65536 and 4"},
    {"TORCH_EFFICIENT", [](AttentionProblem* p) { p->h = p->g = 65536; },
     "supports at most 65535 sequences and as many heads, not 2 and 65536"},
    {"TORCH_FLASH", HaveManyGradients,
     "supports at most 2147483648 elements of dQ in training, with rows padded "
     "to a multiple of 128 and the head dim to 64, not 2149580800"},
    {"TORCH_CUDNN", HaveManyGradients,
     "supports at most 2147483648 elements of dQ in training"},
    {"TORCH_FLASH", [](AttentionProblem* p) { p->deterministic = true; },
     "sums dQ in no fixed order"},
    {"TORCH_CUDNN", [](AttentionProblem* p) { p->deterministic = true; },
     "sums dQ in no fixed order"},
};
INSTANTIATE_TEST_SUITE_P(Each, TorchKernels, ::testing::ValuesIn(kRefusals));

// Forward is always deterministic; only gradients are summed by atomics.
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

}  // namespace
}  // namespace tessera
