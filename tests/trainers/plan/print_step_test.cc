// Runs `train --print_step` as a user does.

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "framework/base/file.h"
#include "framework/observe/report/figures.h"
#include "framework/observe/report/run_records.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainers/program.h"

namespace tessera {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(PrintStepTest, PrintsEveryOpOfAStep) {
  const std::string run = Folder("printed");
  const Outcome table = Shell(ToyTrain({"--print_step", "--out=" + run}));
  EXPECT_EQ(table.exit_code, 0) << table.output;
  for (const char* const part :
       {"block_0..1/attention", "block_1..0/ffn", "w13", "swiglu",
        "cross_entropy", "gradient norm", "adamw", "\ntotals "}) {
    EXPECT_THAT(table.output, HasSubstr(part));
  }
  EXPECT_FALSE(FileExists(run));
  const Outcome muon =
      Shell(ToyTrain({"--print_step", "--set optimizer.muon.lr=0.02"}));
  EXPECT_EQ(muon.exit_code, 0) << muon.output;
  EXPECT_THAT(muon.output, ContainsRegex("matrices +ATen, host loops"));
  EXPECT_THAT(muon.output, HasSubstr("\nmuon "));

  const Outcome printed =
      Shell(ToyTrain({"--print_step", "--json", "--plan_for=H200",
                      "--set execution.overlap_weight_gradients=false"}));
  ASSERT_EQ(printed.exit_code, 0) << printed.output;
  const nlohmann::json rows = nlohmann::json::parse(printed.output);
  double product_flops = 0;
  bool runs_flash_cuda = false;
  for (const nlohmann::json& row : rows) {
    // Scalars take no time worth counting.
    EXPECT_EQ(row["roofline_us"] > 0, row["bytes"] > 0) << row;
    runs_flash_cuda |= row["kernel"] == "FLASH_CUDA";
    if (row["kind"] == "attention") {
      EXPECT_EQ(row["products"], row["phase"] == "forward" ? 2 : 4);
    } else if (row["kind"] == "linear") {
      EXPECT_EQ(row["products"], row["phase"] == "forward" ? 1 : 2);
      product_flops += row["count"].get<double>() * row["flops"].get<double>();
    } else if (row["kind"] == "linear_cross_entropy") {
      // The loss has 7 for each logit.
      product_flops += row["flops"].get<double>() - 7.0 * 4 * 16 * 300;
    }
  }
  // 6 N for each of 4 x 16 tokens.
  constexpr double kMultiplied = 2 * (4 * 32 * 32 + 3 * 32 * 64) + 300 * 32;
  EXPECT_EQ(product_flops, 6 * kMultiplied * 4 * 16);
  EXPECT_TRUE(runs_flash_cuda);  // also in a build without CUDA
}

// A program reads one JSON value.
TEST(PrintStepTest, IsAFieldOfTheDryRunsJson) {
  const auto print = [](const std::string& flags) {
    const Outcome printed =
        Shell(ToyTrain({flags, "--json", "--plan_for=H200"}));
    EXPECT_EQ(printed.exit_code, 0) << printed.output;
    return nlohmann::json::parse(printed.output);
  };
  const nlohmann::json step = print("--print_step");
  nlohmann::json both = print("--dry_run --print_step");
  EXPECT_GT(step.size(), 0);
  EXPECT_EQ(both["step"], step);
  both.erase("step");
  EXPECT_EQ(both, print("--dry_run"));
}

// Under ZeRO-3 each of a model's sections is gathered and reduced for each
// micro-batch.
TEST(PrintStepTest, CountsTheCommunicationOfEveryMicroBatch) {
  const auto counts = [](int micro_batches) {
    const Outcome printed = Shell(ToyTrain(
        {"--print_step", "--json", "--simulate_world=2", "--set layout.zero=3",
         absl::StrCat("--set training.micro_batches=", micro_batches)}));
    EXPECT_EQ(printed.exit_code, 0) << printed.output;
    std::map<std::string, std::pair<int, double>> of;  // runs, their bytes
    for (const nlohmann::json& row : nlohmann::json::parse(printed.output)) {
      const std::string name = row["op"];
      if (name != "whole weights" && name != "gradients") continue;
      const int count = row["count"];
      of[name].first += count;
      of[name].second += count * row["bytes"].get<double>();
    }
    return of;
  };
  const auto one = counts(1), two = counts(2);
  ASSERT_EQ(one.size(), 2);
  for (const auto& [name, runs] : one) {
    EXPECT_GT(runs.first, 2) << name;
    EXPECT_EQ(two.at(name).first, 2 * runs.first) << name;
    EXPECT_NEAR(two.at(name).second, 2 * runs.second, 1e-3 * runs.second)
        << name;
  }
}

TEST(PrintStepTest, PrintsHowLongEachOpTook) {
  const std::string run = Folder("measured");
  const std::string measured = "--measured=" + run;
  // An op runs once in each.
  const std::string micro_batches = "--set training.micro_batches=2";
  const auto print = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> all = {"--print_step", measured, micro_batches};
    all.insert(all.end(), flags.begin(), flags.end());
    return Shell(ToyTrain(all));
  };
  EXPECT_THAT(print({}).output, HasSubstr("there is no folder"));
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run, micro_batches})).exit_code, 0);
  EXPECT_THAT(print({}).output, HasSubstr("has no traced steps; train with"));
  EXPECT_TRUE(RemoveTree(run).ok());
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run, "--set observe.trace.active=2",
                            micro_batches}))
                .exit_code,
            0);

  const Outcome table = print({});
  EXPECT_EQ(table.exit_code, 0) << table.output;
  EXPECT_THAT(table.output, ContainsRegex("best us +took us +ratio\n"));
  EXPECT_THAT(table.output, ContainsRegex("\nlinear .* [1-9][0-9.]* +n/a\n"));
  const Outcome printed = print({"--json"});
  ASSERT_EQ(printed.exit_code, 0) << printed.output;
  double sum_ms = 0;
  for (const nlohmann::json& row : nlohmann::json::parse(printed.output)) {
    sum_ms +=
        row["count"].get<double>() * row["measured_us"].get<double>() * 1e-3;
  }
  const auto records = ReadRunRecords(run);
  ASSERT_TRUE(records.ok()) << records.status();
  EXPECT_GT(sum_ms, 0);
  EXPECT_NEAR(sum_ms, *NumberAt(records->profile, "step.total_ms"),
              1e-6 * sum_ms);

  const Outcome other = print({"--set model.num_layers=3"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.output, HasSubstr("model.num_layers: 2 -> 3"));
  EXPECT_THAT(other.output, HasSubstr(run + "/config.pbtxt"));
  const Outcome smoothed = print({"--set training.label_smoothing=0.1"});
  EXPECT_EQ(smoothed.exit_code, 2);
  EXPECT_THAT(smoothed.output, HasSubstr("training.label_smoothing: 0 -> 0.1"));
  const Outcome averaged = print({"--set 'optimizer.ema={}'"});
  EXPECT_EQ(averaged.exit_code, 2);
  EXPECT_THAT(averaged.output, HasSubstr("optimizer.ema"));
  const Outcome gpu = print({"--plan_for=H200"});
  EXPECT_EQ(gpu.exit_code, 2);
  EXPECT_THAT(gpu.output,
              ContainsRegex("was measured on 1 x CPU.*, but this step is "
                            "planned for 1 x NVIDIA H200"));
  const Outcome trains = Shell(ToyTrain({measured}));
  EXPECT_EQ(trains.exit_code, 2);
  EXPECT_THAT(trains.output, HasSubstr("--measured is for --print_step"));

  const std::string folder = run + "/trace/" + records->profile_name;
  nlohmann::ordered_json profile = records->profile;
  profile["step"]["ops"][0]["op"] = "convolution";
  std::ofstream(folder + "/profile.json") << profile;
  EXPECT_THAT(print({}).output, HasSubstr("another build traced them"));
  profile = records->profile;
  profile["step"]["dropped"] = 5;
  std::ofstream(folder + "/profile.json") << profile;
  EXPECT_THAT(print({}).output, HasSubstr("lacks 5 records"));
  const auto log = ReadFile(run + "/run.jsonl");
  ASSERT_TRUE(log.ok()) << log.status();
  std::ofstream(run + "/run.jsonl") << absl::StrReplaceAll(
      *log, {{R"("world_size":1)", R"("world_size":2)"}});
  EXPECT_THAT(print({}).output,
              ContainsRegex("was measured on 2 x CPU.*, but this step is "
                            "planned for 1 x CPU"));
}

// A plan for a GPU computes gradients of weights beside those of activations,
// so a backward op has two rows. A trace has one time for it.
TEST(PrintStepTest, RowsOfAnOpShareItsTime) {
  const std::string run = Folder("shared");
  const std::string one_layer = "--set model.num_layers=1";
  const auto print = [&](const std::string& flag) {
    const Outcome printed = Shell(ToyTrain(
        {"--print_step", "--json", "--plan_for=H200", one_layer, flag}));
    EXPECT_EQ(printed.exit_code, 0) << printed.output;
    return nlohmann::json::parse(printed.output, nullptr, false);
  };
  using Key = std::tuple<std::string, std::string, std::string>;
  const auto key_of = [](const nlohmann::json& row) {
    return Key(row["phase"], row["part"], row["op"]);
  };
  std::set<Key> keys;
  nlohmann::json profile;
  const nlohmann::json rows = print("");
  for (const nlohmann::json& row : rows) {
    if (!keys.insert(key_of(row)).second) continue;
    profile["step"]["ops"].push_back({{"phase", row["phase"]},
                                      {"part", row["part"]},
                                      {"op", row["op"]},
                                      {"ms", 6}});
  }
  ASSERT_LT(keys.size(), rows.size());
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run, one_layer})).exit_code, 0);
  const std::string device = ReadRunRecords(run)->header["device"]["name"];
  const std::string log = ReadFile(run + "/run.jsonl").value();
  std::ofstream(run + "/run.jsonl")
      << absl::StrReplaceAll(log, {{device, "NVIDIA H200"}});
  ASSERT_TRUE(MakeDirectories(run + "/trace/steps_1-1").ok());
  std::ofstream(run + "/trace/steps_1-1/profile.json") << profile;

  std::map<Key, double> ms;
  for (const nlohmann::json& row : print("--measured=" + run)) {
    ms[key_of(row)] +=
        row["count"].get<double>() * row["measured_us"].get<double>() * 1e-3;
  }
  EXPECT_EQ(ms.size(), keys.size());
  for (const auto& [key, of_op] : ms) {
    EXPECT_NEAR(of_op, 6, 1e-9) << std::get<2>(key);
  }
}

}  // namespace
}  // namespace tessera
