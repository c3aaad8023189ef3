#include "attention_backends/backend_table.h"

#include <string>
#include <vector>

#include "attention_backends/attention_backend.h"
#include "attention_backends/attention_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attention_backends/picky_backend.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using testing::SmallProblem;

TEST(BackendTable, ListsFusedKernelsFirst) {
  std::vector<std::string> names;
  for (const AttentionBackend* backend : AttentionBackends()) {
    names.emplace_back(backend->name());
  }
  EXPECT_THAT(names, ElementsAre("FLASH_CUDA", "TORCH_CUDNN", "TORCH_FLASH",
                                 "TORCH_EFFICIENT", "COMPILED_FUSED", "NAIVE",
                                 "FLASH_TILED"));
}

TEST(BackendTable, GpuKernelsRefuseACpu) {
  for (const char* name :
       {"FLASH_CUDA", "TORCH_CUDNN", "TORCH_FLASH", "TORCH_EFFICIENT"}) {
    AttentionProblem problem = SmallProblem();
    problem.dtype = at::kBFloat16;
    EXPECT_FALSE(FindBackend(name)->Supports(problem).ok()) << name;
  }
}

TEST(BackendTable, TheConfigHasEveryName) {
  for (const AttentionBackend* backend : AttentionBackends()) {
    AttentionConfig::Backend parsed;
    EXPECT_TRUE(
        AttentionConfig::Backend_Parse(std::string(backend->name()), &parsed))
        << backend->name();
  }
}

}  // namespace
}  // namespace tessera
