// A simulated rank has the memory of the real layout, and trains its part.

#include <ATen/ATen.h>

#include <cmath>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/program/verify.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"

namespace tessera {
namespace {

constexpr int kRanks = 512, kRank = 7;

int64_t Bytes(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

// Rank 7 of 64 machines.
WorldInfo RealWorld() {
  WorldInfo world;
  world.rank = kRank;
  world.world_size = kRanks;
  world.local_rank = 7;
  world.local_world_size = 8;
  return world;
}

WorldInfo Simulated() {
  return SimulatedWorld(kRanks, kRank,
                        [](const char*) -> const char* { return nullptr; })
      .value();
}

// The weights that each rank has, by section.
std::vector<at::Tensor> WeightsOf(const ParameterStore& store) {
  std::vector<at::Tensor> weights;
  for (const ParameterSection& section : store.sections()) {
    weights.push_back(store.WholeWeights(section).front());
  }
  return weights;
}

// The ranks in whose part of a section a weight differs.
std::set<int> ChangedParts(const std::vector<at::Tensor>& before,
                           const std::vector<at::Tensor>& after) {
  std::set<int> changed;
  for (size_t s = 0; s < before.size(); ++s) {
    const int64_t part = before[s].numel() / kRanks;
    for (int r = 0; r < kRanks; ++r) {
      if (!at::equal(before[s].narrow(0, r * part, part),
                     after[s].narrow(0, r * part, part))) {
        changed.insert(r);
      }
    }
  }
  return changed;
}

// layout.zero and precision.mode.
class SimulatedSessionTest
    : public testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(SimulatedSessionTest, HasTheStateOfTheRealLayoutAndTrainsIt) {
  const KeepDeterminism keep;
  const auto& [zero, precision] = GetParam();
  const RunConfig config = ToyConfig(
      "configs/tiny_cpu.pbtxt", {absl::StrCat("training.batch_size=", kRanks),
                                 absl::StrCat("layout.zero=", zero),
                                 absl::StrCat("precision.mode=", precision)});
  const auto real = PlanRun(config, RealWorld());
  ASSERT_TRUE(real.ok()) << real.status();
  auto plan = PlanRun(config, Simulated());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->memory.report.total(), real->memory.report.total());
  EXPECT_EQ(CollectiveOrder(plan->step->train),
            CollectiveOrder(real->step->train));
  const auto session = Session::Create(*std::move(plan), {});
  ASSERT_TRUE(session.ok()) << session.status();
  const TrainingState state = (*session)->state();
  const MemoryReport& planned = real->memory.report;
  const WeightBuffers& weights = state.parameters->weights();
  EXPECT_EQ(Bytes(weights.Defined()), planned.parameters + planned.shadow);
  EXPECT_EQ(Bytes({state.optimizer->exp_avg(), state.optimizer->exp_avg_sq()}),
            planned.optimizer);

  std::vector<at::Tensor> before;
  for (const at::Tensor& section : WeightsOf(*state.parameters)) {
    before.push_back(section.clone());
  }
  for (const double loss : Train(**session, 3)) {
    EXPECT_TRUE(std::isfinite(loss) && loss > 0) << loss;
  }
  const std::set<int> changed =
      ChangedParts(before, WeightsOf(*state.parameters));
  if (zero == 0) {
    EXPECT_GT(changed.size(), 8u);
  } else {
    EXPECT_EQ(changed, std::set<int>{kRank});
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, SimulatedSessionTest,
                         testing::Combine(testing::Values(0, 1),
                                          testing::Values("FP32", "BF16")));

}  // namespace
}  // namespace tessera
