// The matrix products of a step are those that its program lists, so a session
// has chosen all their algorithms before the first step.

#include <dlfcn.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/cuda/device.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"
#include "trainers/run/evaluation.h"

namespace tessera {
namespace {

int& AskedForProposals() {
  static int asked = 0;
  return asked;
}

}  // namespace
}  // namespace tessera

// Stands before cuBLASLt's function, which a product without a choice calls.
extern "C" int cublasLtMatmulAlgoGetHeuristic(void* handle, void* desc, void* a,
                                              void* b, void* c, void* d,
                                              void* preference, int wanted,
                                              void* results, int* found) {
  ++tessera::AskedForProposals();
  using Function = int (*)(void*, void*, void*, void*, void*, void*, void*, int,
                           void*, int*);
  static const auto next = reinterpret_cast<Function>(
      dlsym(RTLD_NEXT, "cublasLtMatmulAlgoGetHeuristic"));
  return next(handle, desc, a, b, c, d, preference, wanted, results, found);
}

namespace tessera {
namespace {

class GpuPlannedProductsTest
    : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(GpuPlannedProductsTest, AreAllThatAStepComputes) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const KeepDeterminism keep;
  std::vector<std::string> more = GetParam();
  more.insert(more.end(), {"execution.mode=EAGER", "training.eval_batches=1"});
  const int before = AskedForProposals();
  const auto session = Session::Create(GpuSizedConfig(more), {});
  ASSERT_TRUE(session.ok()) << session.status();
  const int planned = AskedForProposals();
  EXPECT_GT(planned, before);
  Train(**session, 1);
  const BatchLoader& validation = *(*session)->validation_loader();
  ASSERT_TRUE(Evaluate((*session)->step(), validation, (*session)->group(),
                       validation.global_batch())
                  .ok());
  EXPECT_EQ(AskedForProposals(), planned);
}

INSTANTIATE_TEST_SUITE_P(
    Each, GpuPlannedProductsTest,
    testing::Values(std::vector<std::string>{},
                    // A chunked head of two parts; gradients in FP32.
                    std::vector<std::string>{"model.vocab_size=50257",
                                             "training.micro_batches=2"},
                    std::vector<std::string>{"execution.fuse.head_loss=false"},
                    std::vector<std::string>{
                        "attention.backend=COMPILED_FUSED"},
                    std::vector<std::string>{"attention.backend=COMPILED_FUSED",
                                             "training.batch_size=4",
                                             "precision.mode=TF32"}));

}  // namespace
}  // namespace tessera
