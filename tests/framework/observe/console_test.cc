#include "framework/observe/console.h"

#include <cstdio>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "framework/observe/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(FormatTest, Counts) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(3407000000), "3,407,000,000");
  EXPECT_EQ(FormatCount(-123), "-123");
  EXPECT_EQ(FormatCount(-1234), "-1,234");
}

TEST(FormatTest, CountsOfThings) {
  EXPECT_EQ(FormatCountOf(1, "micro-batch"), "1 micro-batch");
  EXPECT_EQ(FormatCountOf(2, "micro-batch"), "2 micro-batches");
  EXPECT_EQ(FormatCountOf(0, "token"), "0 tokens");
  EXPECT_EQ(FormatCountOf(2048, "token"), "2,048 tokens");
}

TEST(FormatTest, Bytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(int64_t{139} << 30), "139.00 GiB");
  EXPECT_EQ(FormatBytes(int64_t{5000} << 40), "5000.00 TiB");
}

TEST(FormatTest, Elapsed) {
  EXPECT_EQ(FormatElapsed(absl::Seconds(-1)), "0s");
  EXPECT_EQ(FormatElapsed(absl::Seconds(59.9)), "59s");
  EXPECT_EQ(FormatElapsed(absl::Seconds(725)), "12m05s");
  EXPECT_EQ(FormatElapsed(absl::Minutes(187)), "3h07m");
  EXPECT_EQ(FormatElapsed(absl::Hours(52)), "2d04h");
}

StepRecord Record() {
  return {.step = 10,
          .loss = 9.21034,
          .grad_norm = 1.23456,
          .lr = 3e-4,
          .step_ms = 79.95,
          .tokens_per_s = 51234.4,
          .tflops = 412.34,
          .mfu = 0.41692,
          .peak_gib = 61.237};
}

TEST(ConsoleTest, StepLinesAlignWithTheHeader) {
  EXPECT_EQ(
      absl::StrCat(FormatStepHeader(), FormatStep(Record())),
      "    step    loss grad norm       lr   tokens/s  TFLOP/s    MFU peak GiB"
      "       ms\n"
      "      10  9.2103     1.235 3.00e-04     51,234    412.3  41.7%    61.24"
      "    79.95\n");
}

TEST(ConsoleTest, UnknownValuesAreNotGuessed) {
  StepRecord record = Record();
  record.mfu.reset();
  record.peak_gib.reset();
  record.loss = std::numeric_limits<double>::quiet_NaN();
  record.tflops = 0.0123;
  EXPECT_EQ(FormatStep(record),
            "      10     nan     1.235 3.00e-04     51,234   0.0123    n/a"
            "      n/a    79.95\n");
}

TEST(ConsoleTest, LinesHaveTheSameWidthForUsualValues) {
  StepRecord small = Record();
  small.step = 1;
  small.loss = 0;
  small.grad_norm = 1e-9;
  small.lr = 0;
  StepRecord large = Record();
  large.step = 10'000'000;
  large.grad_norm = 123456;
  large.tokens_per_s = 98'765'432;
  large.mfu = 1;
  small.tflops = 1.2345e-5;
  large.tflops = 0.0123456;
  EXPECT_EQ(FormatStepHeader().size(), 80u + 1);  // plus the newline
  EXPECT_EQ(FormatStep(small).size(), FormatStepHeader().size());
  EXPECT_EQ(FormatStep(large).size(), FormatStepHeader().size());
}

TEST(ConsoleTest, Evaluation) {
  EXPECT_EQ(FormatEval({.step = 100, .loss = 3.25}),
            "     100  3.2500  validation\n");
  EXPECT_EQ(FormatEval(
                {.step = 100, .set = "code", .loss = 3.25, .bits_per_byte = 1}),
            "     100  3.2500  code, 1.0000 bits per byte\n");
}

RunDescription Description() {
  return {.build = "tessera 1.0, LibTorch 2.11.0",
          .config_hash = "9f86d081884c7d65",
          .device = "NVIDIA H200",
          .world_size = 2,
          .precision = "BF16",
          .attention = "NAIVE (AUTO: the first that supports the problem)",
          .execution = "GRAPH (chosen by AUTO)",
          .data = "synthetic",
          .run_folder = "runs/a",
          .saves = "every 15 minutes and after the last step",
          .parameters = 128600000,
          .batch_size = 16,
          .context = 1024,
          .micro_batches = 2,
          .steps = 1000,
          .flops_per_token = 8e8,
          .peak_tflops = 989,
          .memory_table = "memory per device\n"};
}

TEST(ConsoleTest, Description) {
  EXPECT_EQ(FormatRunDescription(Description()),
            "build       tessera 1.0, LibTorch 2.11.0\n"
            "config      hash 9f86d081884c7d65\n"
            "device      2 x NVIDIA H200\n"
            "precision   BF16\n"
            "attention   NAIVE (AUTO: the first that supports the problem)\n"
            "parameters  128,600,000\n"
            "data        synthetic\n"
            "batch       16 sequences x 1,024 = 16,384 tokens, "
            "2 micro-batches per rank\n"
            "steps       1,000\n"
            "execution   GRAPH (chosen by AUTO)\n"
            "work        13.11 TFLOP per step (0.8 GFLOP per token)\n"
            "peak        989 TFLOP/s (MFU is measured against it)\n"
            "run folder  runs/a\n"
            "checkpoints every 15 minutes and after the last step\n"
            "memory per device\n");
}

TEST(ConsoleTest, TheDescriptionOfASimulatedRunBeginsWithThat) {
  RunDescription run = Description();
  run.simulated = "rank 7 of 512";
  EXPECT_EQ(FormatRunDescription(run), "simulated   rank 7 of 512\n" +
                                           FormatRunDescription(Description()));
}

TEST(ConsoleTest, LongDescriptionsAreWrappedExceptPaths) {
  RunDescription run = Description();
  run.batch_size = 1024;
  run.context = 131072;
  run.micro_batches = 16;
  run.run_folder = "/home/ada/" + std::string(80, 'x');
  const std::string text = FormatRunDescription(run);
  EXPECT_THAT(text,
              HasSubstr("batch       1,024 sequences x 131,072 = 134,217,728 "
                        "tokens, 16 micro-batches per\n"
                        "            rank\n"));
  EXPECT_THAT(text, HasSubstr("\nrun folder  /home/ada/xxx"));
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const bool is_path = absl::StrContains(line, run.run_folder);
    EXPECT_TRUE(is_path || line.size() <= 80) << line;
  }
}

TEST(ConsoleTest, DescriptionOfAResumedRunOnAnUnknownDevice) {
  RunDescription run = Description();
  run.first_step = 400;
  run.peak_tflops.reset();
  EXPECT_THAT(FormatRunDescription(run),
              AllOf(HasSubstr("steps       1,000, resumed after 400\n"),
                    HasSubstr("MFU is n/a; set observe.peak_tflops\n")));
}

TEST(ConsoleTest, ProgressBar) {
  ProgressState state = {.first_step = 200, .step = 200, .steps = 1000};
  EXPECT_EQ(FormatProgress(state, 10), "[##>       ]  20%  200/1000  ? left");
  state.step = 600;
  state.elapsed = absl::Seconds(100);
  EXPECT_EQ(FormatProgress(state, 10),
            "[######>   ]  60%  600/1000  1m40s left");
  state.step = 1000;
  EXPECT_EQ(FormatProgress(state, 10), "[##########] 100%  1000/1000  0s left");
  state.loss = 3.25;
  EXPECT_EQ(FormatProgress(state, 10),
            "[##########] 100%  1000/1000  0s left  loss 3.2500");
}

// The contents of a temporary file.
std::string TextOf(std::FILE* file) {
  std::string text(std::ftell(file), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  return text;
}

TEST(ConsoleTest, PlainOutputHasNoControlCharacters) {
  std::FILE* out = std::tmpfile();
  {
    Console console(out, nullptr);
    EXPECT_TRUE(console.OnTrainStart(Description()).ok());
    for (int step = 1; step <= 51; ++step) {
      EXPECT_TRUE(console.OnStepEnd(step).ok());
      EXPECT_TRUE(console.OnStepLogged(Record()).ok());
    }
    EXPECT_TRUE(console.OnValidationEnd({.step = 51, .loss = 1}).ok());
    EXPECT_TRUE(console.OnSavedBytes({.step = 51, .bytes = 1}).ok());
    EXPECT_TRUE(console.OnSample({.heading = "sample", .text = "a b"}).ok());
  }
  std::string lines;
  for (int i = 0; i < 50; ++i) lines += FormatStep(Record());
  EXPECT_EQ(
      TextOf(out),
      absl::StrCat(FormatRunDescription(Description()), FormatStepHeader(),
                   lines, FormatStepHeader(), FormatStep(Record()),
                   FormatEval({.step = 51, .loss = 1}),
                   FormatSavedBytes({.step = 51, .bytes = 1}),
                   "\n--- sample\na b\n---\n"));
  std::fclose(out);
}

TEST(ConsoleTest, TheBarIsRedrawnBelowNewLines) {
  std::FILE* terminal = std::tmpfile();
  const absl::Time start = absl::UnixEpoch();
  const auto bar = [](int64_t step, int seconds, std::optional<double> loss) {
    return FormatProgress({.step = step,
                           .steps = 1000,
                           .elapsed = absl::Seconds(seconds),
                           .loss = loss},
                          24);
  };
  const auto erase = [](const std::string& drawn) {
    return absl::StrCat("\r", std::string(drawn.size(), ' '), "\r");
  };
  {
    // One file for both, as on a terminal.
    absl::Time now = start;
    Console console(terminal, terminal, [&] { return now; });
    EXPECT_TRUE(console.OnTrainStart(Description()).ok());
    now = start + absl::Seconds(10);
    EXPECT_TRUE(console.OnStepEnd(100).ok());
    now = start + absl::Seconds(10.05);  // too soon to redraw
    EXPECT_TRUE(console.OnStepEnd(101).ok());
    EXPECT_TRUE(console.OnStepLogged(Record()).ok());
    now = start + absl::Seconds(20);
    EXPECT_TRUE(console.OnStepEnd(999).ok());
    now = start + absl::Seconds(20.05);  // the last step is always drawn
    EXPECT_TRUE(console.OnStepEnd(1000).ok());
  }
  const std::string first = bar(100, 10, std::nullopt);
  const std::string second = bar(999, 20, Record().loss);
  const std::string text = TextOf(terminal);
  EXPECT_EQ(text,
            absl::StrCat(FormatRunDescription(Description()), erase(""), first,
                         erase(first), FormatStepHeader(), first, erase(first),
                         FormatStep(Record()), first, erase(first), second,
                         erase(second), bar(1000, 20, Record().loss), "\n"));
  // No escape codes, which some terminals would print.
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_LE(bar(10'000'000, 1'000'000, 10.1234).size(), 80u);
  std::fclose(terminal);
}

}  // namespace
}  // namespace tessera
