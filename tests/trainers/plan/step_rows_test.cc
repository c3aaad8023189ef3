#include "trainers/plan/step_rows.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/cuda/device_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainers/config/config_loader.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

// The kernels that the step of the small model on an H200 shows for ops of
// `kind`.
std::set<std::string> KernelsOf(const std::string& kind,
                                const std::vector<std::string>& sets) {
  const RunConfig config = LoadRunConfig({"configs/small.pbtxt"}, sets).value();
  const auto plan = PlanRun(config, {}, DeviceToPlanFor("H200").value());
  EXPECT_TRUE(plan.ok()) << plan.status();
  std::set<std::string> kernels;
  for (const StepRow& row : RowsOfStep(*plan)) {
    if (row.kind == kind) kernels.insert(row.kernel);
  }
  return kernels;
}

TEST(StepRowsTest, NamesTheLibraryThatComputesProducts) {
  for (const auto& [mode, library] :
       std::vector<std::pair<std::string, std::string>>{{"FP32", "cuBLAS"},
                                                        {"TF32", "cuBLASLt"},
                                                        {"BF16", "cuBLASLt"},
                                                        {"FP16", "cuBLASLt"}}) {
    EXPECT_THAT(KernelsOf("linear", {absl::StrCat("precision.mode=", mode)}),
                ElementsAre(library))
        << mode;
  }
}

// The kernels hold a row in registers.
TEST(StepRowsTest, NamesWhatComputesLongNorms) {
  const auto kernels = [](int width) {
    return KernelsOf("rms_norm", {absl::StrCat("model.d_model=", width),
                                  absl::StrCat("model.num_heads=", width / 16),
                                  "model.num_layers=1", "model.d_ff=16",
                                  "training.batch_size=1"});
  };
  EXPECT_THAT(kernels(16384), ElementsAre("own kernel"));
  EXPECT_THAT(kernels(16400), ElementsAre("ATen"));
}

}  // namespace
}  // namespace tessera
