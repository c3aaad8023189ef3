#include "trainers/program_flags.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainers/program.h"

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
  EXPECT_THAT(Parse({"--notest_quiet", "--test_name="}).value(), IsEmpty());
  EXPECT_FALSE(absl::GetFlag(FLAGS_test_quiet));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_name), "");
}

TEST_F(ProgramFlagsTest, NamesTheArgumentThatIsWrong) {
  const std::pair<std::string, std::string> cases[] = {
      {"--bogus", "program: there is no flag --bogus"},
      {"--notest_count", "program: there is no flag --notest_count"},
      {"--test_name", "program: --test_name needs a value (what it is called)"},
      {"--test_count=x", "program: --test_count cannot be 'x' (how many)"},
      {"--test_quiet=x", "program: --test_quiet cannot be 'x'"},
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

TEST(ProgramsTest, RefuseWhatTheyDoNotKnowWithTwo) {
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
  EXPECT_THAT(Shell(Program("train") + "--help").output,
              AllOf(HasSubstr("--config "), HasSubstr("--set "),
                    HasSubstr("--out "), Not(HasSubstr("--undefok"))));
  const Outcome version = Shell(Program("train") + "--version");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.output, ::testing::StartsWith("tessera "));
  EXPECT_THAT(version.output,
              AllOf(HasSubstr("LibTorch"), Not(HasSubstr("Debug"))));
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

TEST(ProgramsTest, PrepareDataRemovesWhatASignalInterrupts) {
  const std::string text = Folder("zeros.txt"), out = Folder("stopped");
  // Enough for seconds of work.
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
