#include "trainers/program_flags.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "framework/base/exit_code.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainers/program.h"
#include "trainers/rank_errors.h"

ABSL_FLAG(int, test_count, 1, "how many");
ABSL_FLAG(bool, test_quiet, false, "whether to be quiet");
ABSL_FLAG(std::string, test_name, "", "what it is called");

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ProgramFlagsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<std::string>> Parse(
      std::vector<std::string> arguments) {
    return ParseFlags(static_cast<int>(arguments.size()) + 1,
                      Argv(&arguments).data(), {"usage", "version"});
  }
  absl::Status ParseOnly(std::vector<std::string> arguments) {
    return ParseFlagsOnly(static_cast<int>(arguments.size()) + 1,
                          Argv(&arguments).data(), {"usage", "version"});
  }

 private:
  std::vector<char*> Argv(std::vector<std::string>* arguments) {
    std::vector<char*> argv = {program_};
    for (std::string& argument : *arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    return argv;
  }

  const absl::FlagSaver saver_;
  char program_[12] = "bin/program";
};

TEST_F(ProgramFlagsTest, SetsFlagsAndReturnsTheRest) {
  const auto others = Parse({"a", "--test_count=3", "-test_name", "-x", "b",
                             "--test_quiet", "c", "--", "--test_count=4"});
  ASSERT_TRUE(others.ok()) << others.status();
  EXPECT_THAT(*others, ElementsAre("a", "b", "c", "--test_count=4"));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_count), 3);
  EXPECT_EQ(absl::GetFlag(FLAGS_test_name), "-x");
  EXPECT_TRUE(absl::GetFlag(FLAGS_test_quiet));
  EXPECT_THAT(Parse({"--notest_quiet"}).value(), IsEmpty());
  EXPECT_FALSE(absl::GetFlag(FLAGS_test_quiet));
}

TEST_F(ProgramFlagsTest, NamesTheArgumentThatIsWrong) {
  const std::pair<std::string, std::string> cases[] = {
      {"--bogus", "program: there is no flag --bogus"},
      {"--notest_count", "program: there is no flag --notest_count"},
      {"--test_name", "program: --test_name needs a value (what it is called)"},
      {"--test_name=",
       "program: --test_name is empty; give it a value (what it is called) or "
       "leave it out"},
      {"--test_count=x",
       "program: --test_count must be a whole number below 2^31; is 'x' (how "
       "many)"},
      {"--test_quiet=x", "program: --test_quiet must be true or false; is 'x'"},
      {"word", "program: unexpected argument 'word'; flags start with --"},
  };
  for (const auto& [argument, message] : cases) {
    const absl::Status status = ParseOnly({argument});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << argument;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  EXPECT_TRUE(ParseOnly({"--test_count=2"}).ok());
}

std::string Program(const std::string& name) {
  return FindRuntimeFile("trainers/" + name).value() + " ";
}

TEST(ProgramsTest, RejectUnknownFlagsWithExitCodeTwo) {
  for (const char* name : {"train", "generate", "prepare_data"}) {
    const Outcome outcome = Shell(Program(name) + "--bogus");
    EXPECT_EQ(outcome.exit_code, 2) << name;
    EXPECT_THAT(outcome.output, HasSubstr("there is no flag --bogus")) << name;
  }
  for (const char* name : {"train", "generate"}) {
    const Outcome outcome = Shell(Program(name) + "word");
    EXPECT_EQ(outcome.exit_code, 2) << name;
    EXPECT_THAT(outcome.output, HasSubstr("unexpected argument 'word'"));
  }
  EXPECT_EQ(Shell(Program("train") + "--set").exit_code, 2);
  EXPECT_EQ(Shell(Program("generate") + "--temperature=abc").exit_code, 2);
  const std::string text = Folder("text.txt");
  ASSERT_TRUE(WriteFileAtomically(text, "text\n").ok());
  EXPECT_EQ(Shell(absl::StrCat(Program("prepare_data"), text, " --threads=-3",
                               " --tokenizer=bytes --validation_fraction=0",
                               " --out=", Folder("threads")))
                .exit_code,
            2);
}

TEST(ProgramsTest, HelpListsTheFlagsOfEveryFileOfOurs) {
  const Outcome help = Shell(Program("train") + "--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output,
              AllOf(HasSubstr("--config "), HasSubstr("--set "),
                    HasSubstr("training.steps=1000"), HasSubstr("--out "),
                    Not(HasSubstr("--undefok"))));
  for (absl::string_view line : absl::StrSplit(help.output, '\n')) {
    EXPECT_LE(line.size(), 80u) << line;
  }
  EXPECT_EQ(Shell(Program("train") + "-h").output, help.output);
  const Outcome full = Shell(Program("train") + "--helpfull");
  EXPECT_EQ(full.exit_code, 0);
  EXPECT_THAT(full.output, HasSubstr("--undefok"));
  EXPECT_LT(full.output.find("--config "), full.output.find("--undefok"));
  const Outcome version = Shell(Program("train") + "--version");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.output, ::testing::StartsWith("tessera "));
  EXPECT_THAT(version.output,
              AllOf(HasSubstr("LibTorch"), Not(HasSubstr("Debug"))));
}

TEST(ProgramsTest, ConfigsAreMergedInOrder) {
  const std::string overlay = Folder("overlay.pbtxt");
  ASSERT_TRUE(WriteFileAtomically(overlay,
                                  "training { steps: 7 seed: 5 }\n"
                                  "precision { mode: BF16 }")
                  .ok());
  const std::string train = Program("train") + "--print_config ";
  const std::string launch = Program("launch") + "--nproc=2 --print_config ";
  for (const std::string& program : {train, launch}) {
    const Outcome merged =
        Shell(absl::StrCat(program, "--set training.seed=6 --config ", overlay,
                           " --config=configs/precision/fp32.pbtxt"
                           " --config=configs/tiny_gpu.pbtxt"));
    EXPECT_EQ(merged.exit_code, 0) << merged.output;
    EXPECT_THAT(merged.output,
                AllOf(HasSubstr("steps: 2000"), HasSubstr("mode: BF16"),
                      HasSubstr("device: CUDA"), HasSubstr("seed: 6")));
    const Outcome other = Shell(absl::StrCat(
        program, "--config=configs/tiny_gpu.pbtxt --config=", overlay,
        " --config=configs/precision/fp32.pbtxt"));
    EXPECT_EQ(other.exit_code, 0) << other.output;
    EXPECT_THAT(other.output,
                AllOf(HasSubstr("steps: 7"), HasSubstr("mode: FP32"),
                      HasSubstr("device: CUDA"), HasSubstr("seed: 5")));
  }
  const Outcome alone = Shell(train + "--config=" + overlay);
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.output, HasSubstr(overlay + ": model.d_model: must be"));
}

TEST(ProgramsTest, HelpEndsEveryProgramWithZero) {
  for (const char* flag : {"--help", "-help", "--helpfull", "--helpshort",
                           "--help=out", "--helpmatch=zebra", "--version"}) {
    EXPECT_EQ(Shell(Program("prepare_data") + flag).exit_code, 0) << flag;
  }
  EXPECT_EQ(Shell(Program("generate") + "--help").exit_code, 0);
  EXPECT_THAT(Shell(Program("train") + "--help=folder").output,
              AllOf(HasSubstr("--out "), Not(HasSubstr("--dry_run"))));
  EXPECT_THAT(Shell(Program("train") + "--help=zebra").output,
              HasSubstr("no flag mentions 'zebra'"));
}

TEST(ProgramsTest, ErrorsAreShortAndFreeOfControlCharacters) {
  const std::string much = "$(head -c 100000 /dev/zero | tr '\\0' x)";
  for (const std::string& arguments :
       {"--set model.d_ff=" + much, "--" + much, "--config=" + much,
        "--dry_run=" + much}) {
    const Outcome outcome = Shell(Program("train") + arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_THAT(outcome.output, HasSubstr("x ... x"));
    EXPECT_LT(outcome.output.size(), 5000u) << arguments;
  }
  const Outcome variable =
      Shell(absl::StrCat("export WORLD_SIZE=", much, "; ", Program("train")));
  EXPECT_EQ(variable.exit_code, 2);
  EXPECT_LT(variable.output.size(), 5000u);
  EXPECT_THAT(
      Shell(Program("train") + "--set \"$(printf 'a\\033[2J')\"").output,
      AllOf(HasSubstr("a\\x1b[2J"), Not(HasSubstr("\x1b"))));
}

TEST(ProgramsTest, ATypoInAFlagGetsASuggestion) {
  EXPECT_THAT(Shell(Program("train") + "--ouy=x").output,
              HasSubstr("there is no flag --ouy; did you mean --out? --help"));
}

// Number of occurrences of `text` in `output`.
int Count(const std::string& output, const std::string& text) {
  int count = 0;
  for (size_t at = 0; (at = output.find(text, at)) != std::string::npos; ++at) {
    ++count;
  }
  return count;
}

TEST(ProgramsTest, AConfigErrorIsReportedOnceForAllRanks) {
  for (const auto& [arguments, message] :
       {std::pair<std::string, std::string>{"--set training.steps=0",
                                            "training.steps: must be >= 1"},
        {"--set training.batch_size=3",
         "--set: training.batch_size: is 3, but must be a multiple of 2"},
        {"--set attention.backend=FLASH_CUDA", "--set: attention.backend: "},
        {"--dry_run --set data.token_files.train=/nowhere*",
         "--set: data.token_files.train: no file matches"},
        {"--bogus", "there is no flag --bogus"}}) {
    const Outcome outcome =
        Shell(absl::StrCat(Program("launch"), "--nproc=2 ", arguments));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_EQ(Count(outcome.output, message), 1) << outcome.output;
  }
}

TEST(ReportOncePerMachineTest, AnotherRankIsSilentWhenItIsEnded) {
  const absl::Status error = absl::InvalidArgumentError("bad config");
  const WorldInfo first = {.rank = 2, .world_size = 4, .local_world_size = 2};
  EXPECT_EQ(ReportOncePerMachine(error, first, absl::InfiniteDuration()),
            error);
  WorldInfo second = first;
  second.rank = 3;
  second.local_rank = 1;
  // An error that other ranks may not have is reported immediately.
  const absl::Status own = absl::FailedPreconditionError("no GPU 1");
  EXPECT_EQ(ReportOncePerMachine(own, second, absl::InfiniteDuration()), own);
  // Nobody ends this rank: local rank 0 continues without this error.
  EXPECT_EQ(ReportOncePerMachine(error, second, absl::Milliseconds(1)), error);
  // A launcher that saw local rank 0 fail ends this rank, which keeps its code.
  EXPECT_EXIT(
      {
        sigset_t termination;
        sigemptyset(&termination);
        sigaddset(&termination, SIGTERM);
        sigprocmask(SIG_BLOCK, &termination, nullptr);
        kill(getpid(), SIGTERM);
        std::exit(ReportAndExitCode(
            ReportOncePerMachine(error, second, absl::Seconds(60))));
      },
      ::testing::ExitedWithCode(2), "^$");
}

TEST(ProgramsTest, PrepareDataTakesFurtherInputs) {
  const std::string folder = Folder("inputs"), out = Folder("tokens");
  ASSERT_TRUE(MakeDirectories(folder).ok());
  for (const char* name : {"/a.txt", "/b.txt", "/c.txt"}) {
    ASSERT_TRUE(WriteFileAtomically(folder + name, "text\n").ok());
  }
  const Outcome outcome = Shell(Program("prepare_data") + "--input " + folder +
                                "/*.txt --tokenizer=bytes --out=" + out);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  const nlohmann::json manifest = Json(out + "/manifest.json");
  EXPECT_EQ(manifest["train"]["documents"], 2);
  EXPECT_EQ(manifest["validation"]["documents"], 1);
}

TEST(ProgramsTest, PrepareDataRefusesFilesThatAreNotTextOrSkipsThem) {
  const std::string folder = Folder("mixed"), out = Folder("mixed_tokens");
  ASSERT_TRUE(MakeDirectories(folder).ok());
  for (const char* name : {"/a.txt", "/c.txt"}) {
    ASSERT_TRUE(WriteFileAtomically(folder + name, "text\n").ok());
  }
  ASSERT_TRUE(WriteFileAtomically(folder + "/b.txt", "caf\xe9").ok());
  const std::string command = Program("prepare_data") + "--input=" + folder +
                              "/*.txt --tokenizer=bytes --out=" + out;
  const Outcome refused = Shell(command);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output,
              HasSubstr(folder + "/b.txt, byte 3: 0xe9 is not UTF-8"));
  EXPECT_THAT(Glob(out + "*").value(), IsEmpty());
  const Outcome skipped = Shell(command + " --skip_invalid");
  EXPECT_EQ(skipped.exit_code, 0) << skipped.output;
  EXPECT_THAT(skipped.output,
              AllOf(HasSubstr("warning: skipped " + folder + "/b.txt, byte 3"),
                    HasSubstr("warning: skipped 1 of 3 files")));
  const nlohmann::json manifest = Json(out + "/manifest.json");
  EXPECT_EQ(manifest["train"]["bytes"].get<int>() +
                manifest["validation"]["bytes"].get<int>(),
            10);
}

TEST(ProgramsTest, PrepareDataReadsPackedInput) {
  const std::string out = Folder("packed"), cut = Folder("cut.txt.gz");
  const std::string flags =
      Program("prepare_data") + "--tokenizer=bytes --out=" + out;
  const Outcome piped =
      Shell(R"(printf '{"body": "one"}\n{"body": "two"}\n' | gzip | )" + flags +
            " --input=- --format=jsonl --field=body --validation_fraction=0");
  EXPECT_EQ(piped.exit_code, 0) << piped.output;
  EXPECT_EQ(Json(out + "/manifest.json")["train"]["documents"], 2);
  Folder("packed");  // removes it
  const Outcome truncated = Shell("echo text | gzip | head -c 20 > " + cut +
                                  "; " + flags + " " + cut);
  EXPECT_EQ(truncated.exit_code, 2);
  EXPECT_THAT(truncated.output, HasSubstr(cut + ": is truncated"));
  const Outcome format = Shell(flags + " --format=csv " + cut);
  EXPECT_EQ(format.exit_code, 2);
  EXPECT_THAT(format.output,
              HasSubstr("--format must be auto, text or jsonl; is 'csv'"));
  EXPECT_THAT(Glob(out + "*").value(), IsEmpty());
}

TEST(ProgramsTest, PrepareDataRemovesWhatASignalInterrupts) {
  const std::string text = Folder("zeros.txt"), out = Folder("stopped");
  // Takes seconds.
  const Outcome outcome = Shell(absl::StrCat(
      "yes text | head -c 256M > ", text, "; ", Program("prepare_data"),
      "--tokenizer=bytes --threads=1 --out=", out, " ", text, " & ",
      "until ls -d ", out, ".partial-*; do kill -0 $! || break; done; ",
      "kill -TERM $!; wait $!"));
  EXPECT_EQ(outcome.exit_code, 143) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("error: stopped by signal 15"));
  EXPECT_THAT(Glob(out + "*").value(), IsEmpty());
}

}  // namespace
}  // namespace tessera
