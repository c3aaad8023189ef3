// Training with several processes gives the results of one process.

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "framework/checkpoint/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainers/program.h"
#include "tests/trainers/toy_ranks.h"

namespace tessera {
namespace {

// Trains with `nproc` ranks and returns the run's folder.
std::string TrainWith(int nproc, const std::string& name,
                      const std::string& arguments) {
  const std::string run = Folder(absl::StrCat(name, "_", nproc));
  const Outcome outcome = Shell(absl::StrCat(
      FindRuntimeFile("trainers/launch").value(), " --nproc=", nproc,
      ToyFlags(), " ", arguments, " --out=", run));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  return run;
}

// The newest model of a run, as a user finds it.
std::unique_ptr<SafetensorsFile> NewestModel(const std::string& run) {
  const std::string checkpoints = run + "/checkpoints/";
  const std::string newest = ListDirectory(checkpoints).value().back();
  return SafetensorsFile::Open(
             absl::StrCat(checkpoints, newest, "/model.safetensors"))
      .value();
}

// ||a - b|| / ||b|| over all parameters of two runs' last checkpoints.
double ParameterDistance(const std::string& a, const std::string& b) {
  const auto left = NewestModel(a), right = NewestModel(b);
  double difference = 0, norm = 0;
  for (const TensorEntry& entry : right->tensors()) {
    const absl::string_view x = left->Bytes(*left->Find(entry.spec.name));
    const absl::string_view y = right->Bytes(entry);
    for (size_t i = 0; i < y.size(); i += sizeof(float)) {
      float u, v;
      std::memcpy(&u, x.data() + i, sizeof(u));
      std::memcpy(&v, y.data() + i, sizeof(v));
      difference += (u - v) * (u - v);
      norm += v * v;
    }
  }
  return std::sqrt(difference / norm);
}

// Expects the losses, norms and weights of a run of one process.
void ExpectSameTraining(const std::string& many, const std::string& one) {
  const auto expected = Records(one, "step"), records = Records(many, "step");
  ASSERT_EQ(expected.size(), 20u);
  ASSERT_EQ(records.size(), expected.size());
  for (size_t i = 0; i < records.size(); ++i) {
    for (const char* field : {"loss", "grad_norm"}) {
      const double want = expected[i][field];
      EXPECT_NEAR(records[i][field].get<double>(), want, 1e-5 * want)
          << "step " << i + 1 << ", " << field;
    }
  }
  EXPECT_LT(ParameterDistance(many, one), 1e-5);
  EXPECT_NEAR(Records(many, "eval").back()["loss"].get<double>(),
              Records(one, "eval").back()["loss"].get<double>(), 1e-4);
}

using Variant = std::vector<std::string>;

TEST(DataParallelTest, RanksEqualOneProcessAtEveryStep) {
  const std::vector<Variant> variants = {
      {},
      {"model.tied_head=true"},
      {"model.frozen=[\"layers.0.*\", \"token_embeddings.weight\"]"},
      {"training.batch_size=16", "training.micro_batches=2"}};
  std::map<int, std::vector<ToyRun>> runs;  // by the number of ranks
  for (const int ranks : {1, 2, 4}) {
    for (const Variant& variant : variants) {
      runs[ranks].push_back({.folder = Folder(absl::StrCat(
                                 "variant_", runs[ranks].size(), "_", ranks)),
                             .sets = variant});
    }
    TrainToys(ranks, runs[ranks]);
  }
  for (size_t v = 0; v < variants.size(); ++v) {
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, variant ", v));
      ExpectSameTraining(runs[ranks][v].folder, runs[1][v].folder);
    }
  }
}

// The steps with the fields that depend on time.
std::vector<nlohmann::json> TimedSteps(const std::string& run) {
  std::ifstream file(run + "/run.jsonl");
  std::vector<nlohmann::json> steps;
  for (std::string line; std::getline(file, line);) {
    nlohmann::json record = nlohmann::json::parse(line);
    if (record["type"] == "step") steps.push_back(std::move(record));
  }
  return steps;
}

// Whether the times of 200 steps fill the time between two records. A machine
// that stands still for a moment spoils either.
bool StepsFillTheTime(const std::vector<nlohmann::json>& records) {
  const double elapsed =
      records[1]["time"].get<double>() - records[0]["time"].get<double>();
  const double trained = 200 * records[1]["step_ms"].get<double>() * 1e-3;
  return trained < elapsed * 1.05 && trained > elapsed * 0.6;
}

TEST(DataParallelRateTest, TokensAreForAllRanksAndFlopsForOne) {
  constexpr double kTokens = 4 * 16;  // per step: batch size, context
  // 6 N + 6 L W T (trainers/step_plan.h) of the toy model.
  constexpr double kMultiplied = 2 * (4 * 32 * 32 + 3 * 32 * 64) + 300 * 32;
  constexpr double kFlops = 6 * kMultiplied + 6.0 * 2 * 32 * 16;
  constexpr double kPeakTflops = 0.125;
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(absl::StrCat(ranks, " ranks"));
    bool filled = false;
    for (int attempt = 0; attempt < 4 && !filled; ++attempt) {
      const std::vector<nlohmann::json> steps =
          TimedSteps(TrainWith(ranks, absl::StrCat("rates", attempt),
                               absl::StrCat("--set training.steps=400"
                                            " --set training.eval_every_steps="
                                            "1000"
                                            " --set observe.log_every_steps=200"
                                            " --set observe.peak_tflops=",
                                            kPeakTflops)));
      ASSERT_EQ(steps.size(), 2u);
      for (const nlohmann::json& step : steps) {
        const double seconds = step["step_ms"].get<double>() * 1e-3;
        const double tokens_per_s = step["tokens_per_s"];
        EXPECT_NEAR(tokens_per_s * seconds, kTokens, 1e-9 * kTokens);
        const double tflops = tokens_per_s * kFlops * 1e-12 / ranks;
        EXPECT_NEAR(step["tflops"].get<double>(), tflops, 1e-9 * tflops);
        const double mfu = tflops / kPeakTflops;
        EXPECT_NEAR(step["mfu"].get<double>(), mfu, 1e-9 * mfu);
      }
      filled = StepsFillTheTime(steps);
    }
    EXPECT_TRUE(filled);
  }
}

TEST(DataParallelResumeTest, AnotherWorldSizeContinuesTheSameOrder) {
  const std::string save = "--set checkpoint.every_steps=10 ";
  const std::string one = TrainWith(1, "straight", save);
  const std::string two = Folder("moved");
  const std::string launch = absl::StrCat(
      FindRuntimeFile("trainers/launch").value(), " --nproc=2", ToyFlags(), " ",
      save, " --out=", two, " --resume=", one, "/checkpoints/step_00000010");
  const Outcome outcome = Shell(launch);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto expected = Records(one, "step");
  const auto records = Records(two, "step");
  ASSERT_EQ(records.size(), 10u);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i]["step"], expected[i + 10]["step"]);
    EXPECT_NEAR(records[i]["loss"].get<double>(),
                expected[i + 10]["loss"].get<double>(), 1e-4);
  }
}

TEST(DataParallelSignalTest, RanksAgreeToStopLongBeforeTheNextLoggedStep) {
  const std::string run = Folder("stopped");
  // Every logged step is saved, too, like the one before the signal.
  const Outcome outcome = Shell(absl::StrCat(
      "START=$(date +%s); ", FindRuntimeFile("trainers/launch").value(),
      " --nproc=2", ToyFlags(),
      " --set training.steps=1000000 --set observe.log_every_steps=20000"
      " --set checkpoint.every_steps=20 --set training.eval_every_steps=20000"
      " --out=",
      run, " & PID=$!; until [ -e ", run,
      "/checkpoints/step_00000020 ]; do sleep 0.01; done; kill -TERM $PID;"
      " wait $PID"));
  EXPECT_EQ(outcome.exit_code, 143) << outcome.output;
}

TEST(DataParallelSaveTest, RanksSaveTogetherByTheClockOfRankZero) {
  const std::string run = Folder("clock");
  // If the ranks do not agree, they wait for each other, and a second signal
  // ends them.
  const Outcome outcome = Shell(absl::StrCat(
      "END=$(($(date +%s) + 90)); ", FindRuntimeFile("trainers/launch").value(),
      " --nproc=2", ToyFlags(),
      " --set training.steps=1000000 --set observe.log_every_steps=1000000"
      " --set training.eval_every_steps=1000000"
      " --set 'checkpoint={every_minutes: 0.02 keep_last: 9}' --out=",
      run, " & PID=$!; until [ $(ls ", run,
      "/checkpoints 2>/dev/null | wc -l) -ge 3 ] || ! kill -0 $PID ||"
      " [ $(date +%s) -gt $END ]; do sleep 0.01; done; kill -TERM $PID;"
      " (sleep 10; kill -TERM $PID) >/dev/null 2>&1 & SECOND=$!; wait $PID;"
      " CODE=$?; kill $SECOND; exit $CODE"));
  EXPECT_EQ(outcome.exit_code, 143) << outcome.output;
  const auto saved = ListDirectory(run + "/checkpoints");
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_GE(saved->size(), 3u);
}

TEST(DataParallelInitTest, EveryRankStartsFromTheSameWeights) {
  const std::string one = TrainWith(1, "pretrained", "");
  std::vector<ToyRun> runs;
  for (const char* precision : {"FP32", "BF16"}) {
    runs.push_back({.folder = Folder(absl::StrCat("tuned_", precision)),
                    .sets = {"training.steps=3", "optimizer.adamw.lr=1e-30",
                             absl::StrCat("precision.mode=", precision),
                             "checkpoint.init_from=" + one}});
  }
  TrainToys(2, runs);
  for (const ToyRun& run : runs) {
    EXPECT_LT(ParameterDistance(run.folder, one), 1e-20) << run.folder;
  }
}

TEST(DataParallelSignalTest, ASignalToOneRankStopsAll) {
  for (const auto& [name, code] : {std::pair<std::string, int>{"INT", 130},
                                   {"TERM", 143},
                                   {"USR1", 138}}) {
    const std::string run = Folder("one_stopped_" + name);
    const std::string rank =
        ToyTrain({"--set training.steps=1000000", "--out=" + run});
    // Outside of the range of ephemeral ports.
    const Outcome outcome = Shell(absl::StrCat(
        "export OMP_NUM_THREADS=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 "
        "MASTER_ADDR=127.0.0.1 MASTER_PORT=",
        20000 + (getpid() + code) % 10000, "; RANK=0 LOCAL_RANK=0 ", rank,
        " & ZERO=$!; RANK=1 LOCAL_RANK=1 ", rank,
        " & ONE=$!; until grep -q '\"step\":3,' ", run,
        "/run.jsonl 2>/dev/null || ! kill -0 $ONE; do sleep 0.01; done; ",
        "kill -", name,
        " $ONE; wait $ZERO; echo zero $?; wait $ONE; echo one $?"));
    EXPECT_THAT(outcome.output,
                testing::HasSubstr(absl::StrCat("zero ", code, "\n")));
    EXPECT_THAT(outcome.output,
                testing::HasSubstr(absl::StrCat("one ", code, "\n")));
  }
}

// The error of a run that diverges, starting at its step.
std::string Divergence(int nproc) {
  const Outcome outcome = Shell(absl::StrCat(
      FindRuntimeFile("trainers/launch").value(), " --nproc=", nproc,
      ToyFlags(), " --set optimizer.adamw.lr=1e30 --out=",
      Folder(absl::StrCat("diverged_", nproc))));
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  const size_t begin = outcome.output.find("step 2 gave a gradient that is");
  EXPECT_NE(begin, std::string::npos) << outcome.output;
  return outcome.output.substr(begin, outcome.output.find('\n', begin) - begin);
}

TEST(DataParallelFailureTest, DivergenceIsReportedForTheGlobalBatch) {
  const std::string loss = "(loss ";
  const std::string one = Divergence(1), two = Divergence(2);
  const auto after_loss = [&](const std::string& error) {
    return error.substr(error.find(loss) + loss.size());
  };
  EXPECT_NEAR(std::stod(after_loss(two)), std::stod(after_loss(one)), 1e-3);
  // With several ranks, gains come before matrices in the buffer.
  EXPECT_THAT(one, testing::HasSubstr(", first in token_embeddings.weight"));
  EXPECT_THAT(two, testing::HasSubstr(", first in layers.0.ln1.weight"));
}

TEST(DataParallelFailureTest, AnErrorOfOnlyRankZeroIsReported) {
  const std::string run = Folder("unwritable");
  const Outcome outcome =
      Shell(absl::StrCat("mkdir -p ", run, "/config.pbtxt/full; ",
                         FindRuntimeFile("trainers/launch").value(),
                         " --nproc=2", ToyFlags(), " --out=", run));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  const std::string error =
      absl::StrCat("[0] [rank 0] error: cannot write ", run);
  const size_t said = outcome.output.find(error);
  EXPECT_NE(said, std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find(error, said + 1), std::string::npos);
}

// Each rank reads its own half of this file's four sequences at every step.
TEST(DataParallelFailureTest, RankZeroSavesIfItCannotReadItsTokens) {
  for (const int rank : {0, 1}) {
    const std::string run = Folder(absl::StrCat("unreadable_", rank));
    const std::string tokens = Folder("four_sequences");
    const Outcome outcome = Shell(absl::StrCat(
        "head -c 130 /dev/zero > ", tokens, "; ",
        FindRuntimeFile("trainers/launch").value(), " --nproc=2", ToyFlags(),
        " --set training.steps=1000000 --set 'data={token_files {train: \"",
        tokens, "\" format: NANOGPT} shuffle: false validation_fraction: 0}'",
        " --out=", run, " & PID=$!; until grep -q '\"step\":3,' ", run,
        "/run.jsonl 2>/dev/null; do sleep 0.01; done; ",
        rank == 0 ? "printf '\\377\\377' | dd status=none conv=notrunc of="
                  : "truncate -s 100 ",
        tokens, "; wait $PID"));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_THAT(outcome.output,
                testing::HasSubstr(absl::StrCat(
                    "[rank ", rank, "] error: ", tokens, ", byte ")));
    const auto saved = ListDirectory(run + "/checkpoints");
    if (rank == 1) {  // rank 0 notices it during the step
      EXPECT_FALSE(saved.ok());
      continue;
    }
    ASSERT_TRUE(saved.ok()) << outcome.output;
    const int64_t step = Records(run, "step").back()["step"];
    EXPECT_THAT(*saved,
                testing::ElementsAre(absl::StrFormat("step_%08d", step)));
  }
}

TEST(DataParallelFailureTest, ARunInUseIsRefused) {
  const std::string run = Folder("in_use");
  // This shell holds the lock while the ranks start.
  const Outcome outcome = Shell(
      absl::StrCat("mkdir -p ", run, "; exec 9>", run, "/.lock; flock 9; ",
                   FindRuntimeFile("trainers/launch").value(), " --nproc=2",
                   ToyFlags(), " --out=", run, " 9>&-"));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_THAT(outcome.output,
              testing::HasSubstr("is being trained by another process"));
}

// `launch` for ranks that each run `before` in a shell first.
std::string LaunchAfter(const std::string& before, int nproc,
                        const std::string& folder) {
  EXPECT_TRUE(MakeDirectories(folder).ok());
  const std::string script = folder + "/rank.sh";
  std::ofstream(script) << "#!/bin/sh\n"
                        << before << "\nexec "
                        << FindRuntimeFile("trainers/train").value()
                        << " \"$@\"\n";
  return absl::StrCat("chmod +x ", script, "; BUILD_WORKING_DIRECTORY=", folder,
                      " ", FindRuntimeFile("trainers/launch").value(),
                      " --nproc=", nproc, " --program=", script, ToyFlags());
}

// As Slurm places them with --distribution=cyclic: ranks 0 and 2 on the first
// machine.
TEST(DataParallelSaveTest, RanksMayAlternateBetweenTwoMachines) {
  const std::string folder = Folder("cyclic");
  const Outcome outcome = Shell(absl::StrCat(
      LaunchAfter("export LOCAL_RANK=$((RANK / 2)) LOCAL_WORLD_SIZE=2", 4,
                  folder),
      " --out=", folder, "/run"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_TRUE(FileExists(folder + "/run/checkpoints/step_00000020"));
}

// Without --out the folder has the time in its name.
TEST(DataParallelFolderTest, RanksThatStartInDifferentSecondsShareOne) {
  const std::string folder = Folder("unnamed");
  const Outcome outcome = Shell(LaunchAfter("sleep $((2 * RANK))", 2, folder) +
                                " --set layout.zero=1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto runs = ListDirectory(folder + "/runs");
  ASSERT_TRUE(runs.ok()) << outcome.output;
  ASSERT_EQ(runs->size(), 1u);
  EXPECT_TRUE(FileExists(absl::StrCat(folder, "/runs/", (*runs)[0],
                                      "/checkpoints/step_00000020")));
}

TEST(DataParallelFolderTest, RanksWithDifferentFoldersAreRefused) {
  const std::string folder = Folder("different");
  const Outcome outcome = Shell(
      LaunchAfter(absl::StrCat("set -- \"$@\" --out=", folder, "/of_$RANK"), 2,
                  folder) +
      " --timeout=60s");
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, testing::HasSubstr(absl::StrCat(
                                  "the run's folder (--out, here ", folder,
                                  "/of_1) differs: rank 0 has ")));
  EXPECT_FALSE(FileExists(folder + "/of_0"));
}

TEST(DataParallelSampleTest, OtherRanksEndBeforeTheSample) {
  const std::string run = Folder("sampled");
  // A sample of minutes: after this many steps the end of a document is no
  // longer likely. Only rank 0 remains of the launcher's processes.
  const Outcome outcome = Shell(absl::StrCat(
      FindRuntimeFile("trainers/launch").value(), " --nproc=2", ToyFlags(),
      " --set data.default_text.tokenizer=BYTES"
      " --set training.steps=300 --set training.eval_every_steps=300"
      " --set training.sample_tokens_at_end=1048576 --out=",
      run, " & PID=$!; until [ -e ", run,
      "/checkpoints/step_00000300 ]; do sleep 0.01; done; sleep 3;"
      " echo $(grep -lsx \"PPid:[[:space:]]*$PID\" /proc/[0-9]*/status |"
      " wc -l) left; kill -TERM $PID; sleep 1.5; kill -TERM $PID; wait $PID"));
  EXPECT_EQ(outcome.exit_code, 128 + 9) << outcome.output;
  EXPECT_THAT(outcome.output, testing::HasSubstr("\n1 left\n"));
}

TEST(DataParallelPlanTest, WhatDoesNotTrainIsPrintedOnce) {
  for (const auto& [flag, line] :
       {std::pair<std::string, std::string>{"--dry_run", "NAIVE: supported"},
        {"--print_config", "num_layers: "}}) {
    const Outcome outcome =
        Shell(absl::StrCat(FindRuntimeFile("trainers/launch").value(),
                           " --nproc=2", ToyFlags(), " ", flag));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    const size_t first = outcome.output.find(line);
    EXPECT_NE(first, std::string::npos) << outcome.output;
    EXPECT_EQ(outcome.output.find(line, first + 1), std::string::npos) << flag;
  }
}

TEST(DataParallelFailureTest, ABatchThatDoesNotDivideIsRejectedByEachRank) {
  const Outcome outcome = Shell(
      absl::StrCat(FindRuntimeFile("trainers/launch").value(), " --nproc=3",
                   ToyFlags(), " --out=", Folder("refused")));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.output, testing::HasSubstr("must be a multiple of 3"));
}

}  // namespace
}  // namespace tessera
