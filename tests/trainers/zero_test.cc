// Ranks that divide state compute what whole ranks do, bit for bit.

#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainers/program.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr char kEma[] = "/ema.safetensors";

Outcome Launch(int ranks, const std::string& arguments) {
  return Shell(absl::StrCat(FindRuntimeFile("trainers/launch").value(),
                            " --nproc=", ranks, ToyFlags(), " ", arguments));
}

// Trains with a ZeRO stage; returns the run's folder.
std::string Train(int ranks, int zero, const std::string& name,
                  const std::string& arguments) {
  const std::string run = Folder(absl::StrCat(name, "_", ranks, "_", zero));
  const Outcome outcome =
      Launch(ranks, absl::StrCat("--set layout.zero=", zero,
                                 " --set training.batch_size=12 ", arguments,
                                 " --out=", run));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  return run;
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

std::string Last(const std::string& run) {
  return run + "/checkpoints/step_00000020";
}

struct Variant {
  int ranks;
  const char* flags;
};

// Expects stages 0 and 1 to agree, and 2 and 3; with one micro-batch all.
void ExpectStagesAgree(const std::string& name, int ranks,
                       const std::string& flags) {
  std::vector<std::string> runs;
  for (int zero = 0; zero <= 3; ++zero) {
    runs.push_back(Train(ranks, zero, name, flags));
  }
  const bool accumulates = absl::StrContains(flags, "micro_batches");
  for (const auto& [run, like] :
       {std::pair{1, 0}, {2, accumulates ? 3 : 0}, {3, accumulates ? 2 : 0}}) {
    SCOPED_TRACE(absl::StrCat("ZeRO ", run, " and ", like));
    const auto expected = Records(runs[like], "step");
    ASSERT_EQ(expected.size(), 20u);
    EXPECT_EQ(Records(runs[run], "step"), expected);
    EXPECT_EQ(Records(runs[run], "eval"), Records(runs[like], "eval"));
    ExpectSameState(Last(runs[run]), Last(runs[like]));
  }
}

class ZeroTest : public ::testing::TestWithParam<Variant> {};

TEST_P(ZeroTest, HasTheBitsOfTheOtherStages) {
  const auto& [ranks, flags] = GetParam();
  const std::string test =
      ::testing::UnitTest::GetInstance()->current_test_info()->name();
  ExpectStagesAgree(absl::StrCat("zero_", test.substr(test.rfind('/') + 1)),
                    ranks, flags);
}

// All combinations of what the variants have in pairs; takes a quarter of an
// hour.
TEST(ZeroProductTest, DISABLED_EveryCombination) {
  const std::vector<std::vector<std::string>> choices = {
      {"", " --set training.micro_batches=2"},
      {"", " --set 'model.frozen=[\"layers.0.*\"]'"},
      {"", " --set model.tied_head=true"},
      {"", " --set optimizer.clip_norm=0.01"},
      {"--set precision.mode=BF16", "--set precision.mode=FP32"},
      {"", " --set recompute.policy=BLOCK"}};
  int failed = 0;
  for (int product = 0; product < 1 << choices.size(); ++product) {
    std::string flags = choices[4][product >> 4 & 1];
    for (size_t c = 0; c < choices.size(); ++c) {
      if (c != 4) absl::StrAppend(&flags, choices[c][product >> c & 1]);
    }
    ExpectStagesAgree("product", 2, flags);
    const int failures = ::testing::UnitTest::GetInstance()
                             ->current_test_info()
                             ->result()
                             ->total_part_count();
    std::cout << (failures > failed ? "differs: " : "equal:   ") << flags
              << std::endl;
    failed = failures;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, ZeroTest,
    ::testing::Values(
        Variant{2, ""}, Variant{3, "--set precision.mode=BF16"},
        Variant{2,
                "--set precision.mode=BF16 --set model.tied_head=true"
                " --set training.micro_batches=2"},
        Variant{3,
                "--set precision.mode=BF16_PURE --set recompute.policy=BLOCK"},
        Variant{
            4,
            "--set precision.mode=BF16 --set optimizer.clip_norm=0.01 --set"
            " 'model.frozen=[\"layers.0.*\", \"token_embeddings.weight\"]'"},
        Variant{2,
                "--set precision.mode=BF16 --set execution.defer_update=true"
                " --set execution.storage=ARENA"}));

// Matrices of AdamW and of NorMuon.
constexpr char kBothOptimizers[] =
    "--set optimizer.muon.normuon_beta2=0.9"
    " --set 'optimizer.muon.patterns=[\"layers.*.ffn.*\"]'";

// Ranks have whole matrices, of odd sizes, and some have none.
INSTANTIATE_TEST_SUITE_P(
    Muon, ZeroTest,
    ::testing::Values(
        Variant{4,
                "--set precision.mode=BF16 --set optimizer.muon.lr=0.02"
                " --set optimizer.ema.decay=0.9"
                " --set model.d_ff=57 --set execution.defer_update=true"},
        Variant{
            2,
            "--set optimizer.muon.normuon_beta2=0.9"
            " --set optimizer.adamw.cautious_weight_decay=true"
            " --set training.micro_batches=2 --set optimizer.clip_norm=0.1"},
        Variant{4,
                "--set precision.mode=BF16 --set model.num_layers=5"
                " --set optimizer.muon.normuon_beta2=0.9"
                " --set optimizer.ema.decay=0.9"
                " --set 'model.frozen=[\"layers.0.*\"]'"},
        Variant{3,
                "--set precision.mode=BF16_PURE --set model.d_ff=90"
                " --set optimizer.muon.normuon_beta2=0.9"
                " --set optimizer.ema.decay=0.9"
                " --set 'optimizer.muon.patterns=[\"*\"]'"}));

// Two groups of two ranks each divide a state. All stages give the same bits,
// and the values of four ranks that divide one state, up to the order of sums.
TEST(ZeroReplicaTest, ReplicasSumTheirParts) {
  const auto expected =
      Records(Train(4, 1, "not_replicated", kBothOptimizers), "step");
  std::vector<nlohmann::json> first;
  for (const int zero : {1, 2, 3}) {
    const auto records =
        Records(Train(4, zero, "replicated",
                      absl::StrCat("--set layout.replica=2 ", kBothOptimizers)),
                "step");
    ASSERT_EQ(records.size(), expected.size());
    if (first.empty()) first = records;
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

// A run that is saved with one layout continues with another.
TEST(ZeroResumeTest, ACheckpointHasNoLayout) {
  const std::string save = absl::StrCat(
      "--set precision.mode=BF16 --set checkpoint.every_steps=10"
      " --set model.num_layers=3 --set optimizer.ema.decay=0.9 ",
      kBothOptimizers);
  const std::string straight = Train(2, 0, "straight", save);
  const auto expected = Records(straight, "step");
  for (const auto& [from, to] : {std::pair{0, 3}, {3, 1}, {1, 2}, {2, 0}}) {
    const std::string first = Train(2, from, "moved_from", save);
    const std::string second = Train(
        2, to, absl::StrCat("moved_", from),
        absl::StrCat(save, " --resume=", first, "/checkpoints/step_00000010"));
    const auto records = Records(second, "step");
    ASSERT_EQ(records.size(), 10u);
    for (size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(records[i], expected[i + 10]);
    }
    ExpectSameState(Last(second), Last(straight));
  }
  // Another number of ranks reads the same state, too: at a learning rate of
  // nothing the weights keep their bits.
  const std::string one = Train(
      3, 3, "stands_still",
      absl::StrCat(save, " --set optimizer.adamw.lr=1e-30 --resume=", straight,
                   "/checkpoints/step_00000010"));
  const auto left =
      ReadFile(straight + "/checkpoints/step_00000010/model.safetensors");
  const auto right = ReadFile(Last(one) + "/model.safetensors");
  ASSERT_TRUE(left.ok() && right.ok());
  EXPECT_TRUE(*left == *right);
}

TEST(ZeroRefusalTest, NamesTheFieldAndWhatWorks) {
  struct Refused {
    const char *arguments, *message;
  };
  for (const Refused& refused : std::vector<Refused>{
           {"--set layout.shard=3 --set layout.zero=1",
            "layout.shard: replica (1) x shard (3) is 3, but the run has 2 "
            "ranks"},
           {"--set layout.shard=2",
            "layout.shard: is 2, but with layout.zero 0 no state is divided"},
           {"--set layout.zero=1 --set layout.replica=2",
            "layout.shard: is 1, so that no state is divided"},
           {"--set layout.zero=4", "layout.zero: must be 0, 1, 2 or 3; is 4"},
           {"--set layout.tensor=2", "layout.tensor: is 2, but only 1 is"}}) {
    const Outcome outcome =
        Launch(2, absl::StrCat(refused.arguments, " --out=", Folder("no")));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(refused.message));
  }
}

}  // namespace
}  // namespace tessera
