// Ranks that divide state compute what whole ranks do, bit for bit.

#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/file.h"
#include "framework/dist/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainers/program.h"
#include "tests/trainers/toy_ranks.h"
#include "trainers/config/config_loader.h"
#include "trainers/plan/run_plan.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using Sets = std::vector<std::string>;

constexpr char kEma[] = "/ema.safetensors";

Sets Joined(Sets sets, const Sets& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

// Six steps with a ZeRO stage, two evaluations.
ToyRun Toy(const std::string& name, int zero, const Sets& sets) {
  return {.folder = Folder(absl::StrCat(name, "_", zero)),
          .sets = Joined(
              {absl::StrCat("layout.zero=", zero), "training.batch_size=12",
               "training.steps=6", "training.eval_every_steps=3"},
              sets)};
}

// Expects the same weights, moments and averages in two checkpoints.
void ExpectSameState(const std::string& a, const std::string& b) {
  EXPECT_EQ(FileExists(a + kEma), FileExists(b + kEma));
  for (const char* file :
       {"/model.safetensors", "/optimizer.safetensors", kEma}) {
    if (file == kEma && !FileExists(a + kEma)) continue;
    const auto left = ReadFile(a + file), right = ReadFile(b + file);
    ASSERT_TRUE(left.ok() && right.ok()) << left.status() << right.status();
    EXPECT_TRUE(*left == *right) << a << file << " differs from " << b;
  }
}

std::string CheckpointOf(const ToyRun& run, int step) {
  return absl::StrCat(run.folder, "/checkpoints/step_0000000", step);
}

struct Variant {
  int ranks;
  Sets sets;
};

// Expects stages 0 and 1 to agree, and 2 and 3; with one micro-batch all.
void ExpectStagesAgree(const std::string& name, int ranks, const Sets& sets) {
  std::vector<ToyRun> runs;
  for (int zero = 0; zero <= 3; ++zero) {
    runs.push_back(Toy(name, zero, sets));
  }
  TrainToys(ranks, runs);
  const bool accumulates = absl::c_any_of(sets, [](const std::string& set) {
    return absl::StartsWith(set, "training.micro_batches=");
  });
  for (const auto& [run, like] :
       {std::pair{1, 0}, {2, accumulates ? 3 : 0}, {3, accumulates ? 2 : 0}}) {
    SCOPED_TRACE(absl::StrCat("ZeRO ", run, " and ", like));
    const std::string &found = runs[run].folder, &wanted = runs[like].folder;
    const auto expected = Records(wanted, "step");
    ASSERT_EQ(expected.size(), 6u);
    EXPECT_EQ(Records(found, "step"), expected);
    const auto evaluated = Records(wanted, "eval");
    EXPECT_FALSE(evaluated.empty());
    EXPECT_EQ(Records(found, "eval"), evaluated);
    ExpectSameState(CheckpointOf(runs[run], 6), CheckpointOf(runs[like], 6));
  }
}

class ZeroTest : public ::testing::TestWithParam<Variant> {};

TEST_P(ZeroTest, HasTheBitsOfTheOtherStages) {
  const std::string test =
      ::testing::UnitTest::GetInstance()->current_test_info()->name();
  ExpectStagesAgree(absl::StrCat("zero_", test.substr(test.rfind('/') + 1)),
                    GetParam().ranks, GetParam().sets);
}

// All combinations of what the variants have in pairs; takes minutes.
TEST(ZeroProductTest, DISABLED_EveryCombination) {
  const std::vector<Sets> choices = {
      {"", "training.micro_batches=2"}, {"", "model.frozen=[\"layers.0.*\"]"},
      {"", "model.tied_head=true"},     {"", "optimizer.clip_norm=0.01"},
      {"precision.mode=BF16", ""},      {"", "recompute.policy=BLOCK"}};
  int failed = 0;
  for (int product = 0; product < 1 << choices.size(); ++product) {
    Sets sets;
    for (size_t c = 0; c < choices.size(); ++c) {
      const std::string& set = choices[c][product >> c & 1];
      if (!set.empty()) sets.push_back(set);
    }
    ExpectStagesAgree("product", 2, sets);
    const int failures = ::testing::UnitTest::GetInstance()
                             ->current_test_info()
                             ->result()
                             ->total_part_count();
    std::cout << (failures > failed ? "differs: " : "equal:   ")
              << absl::StrJoin(sets, " ") << std::endl;
    failed = failures;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, ZeroTest,
    ::testing::Values(
        Variant{2, {}}, Variant{3, {"precision.mode=BF16"}},
        Variant{2,
                {"precision.mode=BF16", "model.tied_head=true",
                 "training.micro_batches=2"}},
        Variant{3, {"precision.mode=BF16_PURE", "recompute.policy=BLOCK"}},
        Variant{4,
                {"precision.mode=BF16", "optimizer.clip_norm=0.01",
                 "model.frozen=[\"layers.0.*\", \"token_embeddings.weight\"]"}},
        Variant{2,
                {"precision.mode=BF16", "execution.defer_update=true",
                 "execution.storage=ARENA"}}));

// Matrices of AdamW and of NorMuon.
Sets BothOptimizers() {
  return {"optimizer.muon.normuon_beta2=0.9",
          "optimizer.muon.patterns=[\"layers.*.ffn.*\"]"};
}

// Ranks have whole matrices, of odd sizes, and some have none.
INSTANTIATE_TEST_SUITE_P(
    Muon, ZeroTest,
    ::testing::Values(
        Variant{4,
                {"precision.mode=BF16", "optimizer.muon.lr=0.02",
                 "optimizer.ema.decay=0.9", "model.d_ff=57",
                 "execution.defer_update=true"}},
        Variant{2,
                {"optimizer.muon.normuon_beta2=0.9",
                 "optimizer.adamw.cautious_weight_decay=true",
                 "training.micro_batches=2", "optimizer.clip_norm=0.1"}},
        Variant{4,
                {"precision.mode=BF16", "model.num_layers=5",
                 "optimizer.muon.normuon_beta2=0.9", "optimizer.ema.decay=0.9",
                 "model.frozen=[\"layers.0.*\"]"}},
        Variant{3,
                {"precision.mode=BF16_PURE", "model.d_ff=90",
                 "optimizer.muon.normuon_beta2=0.9", "optimizer.ema.decay=0.9",
                 "optimizer.muon.patterns=[\"*\"]"}}));

// Two groups of two ranks each divide a state. All stages give the same bits,
// and the values of four ranks that divide one state, up to the order of sums.
TEST(ZeroReplicaTest, ReplicasSumTheirParts) {
  std::vector<ToyRun> runs = {Toy("not_replicated", 1, BothOptimizers())};
  for (const int zero : {1, 2, 3}) {
    runs.push_back(Toy("replicated", zero,
                       Joined(BothOptimizers(), {"layout.replica=2"})));
  }
  TrainToys(4, runs);
  const auto expected = Records(runs[0].folder, "step");
  ASSERT_EQ(expected.size(), 6u);
  const auto first = Records(runs[1].folder, "step");
  for (const int zero : {1, 2, 3}) {
    const auto records = Records(runs[zero].folder, "step");
    ASSERT_EQ(records.size(), expected.size());
    EXPECT_EQ(records, first) << "ZeRO " << zero;
    for (size_t i = 0; i < records.size(); ++i) {
      for (const char* value : {"loss", "grad_norm"}) {
        const double wanted = expected[i][value].get<double>();
        EXPECT_NEAR(records[i][value].get<double>(), wanted, 1e-5 * wanted)
            << value << " of step " << i + 1 << ", ZeRO " << zero;
      }
    }
  }
}

// A run that is saved with one layout continues with another, from there with a
// third, and so on.
TEST(ZeroResumeTest, ACheckpointHasNoLayout) {
  const Sets save =
      Joined(BothOptimizers(), {"precision.mode=BF16", "model.num_layers=3",
                                "optimizer.ema.decay=0.9", "training.steps=9",
                                "checkpoint={every_steps: 2 keep_last: 9}"});
  std::vector<ToyRun> runs = {Toy("straight", 0, save)};
  const std::vector<int> from = {2, 4, 6, 8}, stages = {3, 1, 2, 0};
  for (size_t i = 0; i < stages.size(); ++i) {
    ToyRun run = Toy("moved_to", stages[i], save);
    run.resume = CheckpointOf(runs.back(), from[i]);
    runs.push_back(run);
  }
  TrainToys(2, runs);
  const auto expected = Records(runs[0].folder, "step");
  ASSERT_EQ(expected.size(), 9u);
  for (size_t i = 0; i < stages.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("ZeRO ", stages[i], " from step ", from[i]));
    const ToyRun& moved = runs[i + 1];
    const std::vector<nlohmann::json> rest(expected.begin() + from[i],
                                           expected.end());
    EXPECT_EQ(Records(moved.folder, "step"), rest);
    ExpectSameState(CheckpointOf(moved, 9), CheckpointOf(runs[0], 9));
  }
  // Another number of ranks reads the same state, too: at a learning rate of
  // nothing the weights keep their bits.
  ToyRun still =
      Toy("stands_still", 3, Joined(save, {"optimizer.adamw.lr=1e-30"}));
  still.resume = CheckpointOf(runs[0], 4);
  TrainToys(3, {still});
  const auto left = ReadFile(CheckpointOf(runs[0], 4) + "/model.safetensors");
  const auto right = ReadFile(CheckpointOf(still, 9) + "/model.safetensors");
  ASSERT_TRUE(left.ok() && right.ok());
  EXPECT_TRUE(*left == *right);
}

TEST(ZeroRefusalTest, NamesTheFieldAndWhatWorks) {
  WorldInfo two_ranks;
  two_ranks.world_size = two_ranks.local_world_size = 2;
  const auto refusal = [&](const Sets& sets) -> absl::Status {
    const auto config =
        LoadRunConfig({kToyConfigFile}, Joined(ToySets(), sets));
    return config.ok() ? PlanRun(*config, two_ranks).status() : config.status();
  };
  EXPECT_TRUE(refusal({"layout.zero=1"}).ok());
  struct Refused {
    Sets sets;
    const char* message;
  };
  for (const Refused& refused : std::vector<Refused>{
           {{"layout.shard=3", "layout.zero=1"},
            "layout.shard: replica (1) x shard (3) is 3, but the run has 2 "
            "ranks"},
           {{"layout.shard=2"},
            "layout.shard: is 2, but with layout.zero 0 no state is divided"},
           {{"layout.zero=1", "layout.replica=2"},
            "layout.shard: is 1, so that no state is divided"},
           {{"layout.zero=4"}, "layout.zero: must be 0, 1, 2 or 3; is 4"},
           {{"layout.tensor=2"}, "layout.tensor: is 2, but only 1 is"}}) {
    const absl::Status status = refusal(refused.sets);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(refused.message));
  }
}

}  // namespace
}  // namespace tessera
