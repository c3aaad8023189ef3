#include "trainers/resume_command.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ResumeCommandTest, KeepsArgumentsExceptTheRunFolder) {
  EXPECT_EQ(ResumeCommand("train",
                          {"--config=c.pbtxt", "--resume", "never", "--out=a",
                           "--set", "training.steps=9", "-out", "b",
                           "--resume=runs/old", "--outer=1"},
                          "runs/x"),
            "train --config=c.pbtxt --set training.steps=9 --outer=1 "
            "--out=runs/x");
  EXPECT_EQ(ResumeCommand("train", {"--out"}, "runs/x"), "train --out=runs/x");
}

TEST(ResumeCommandTest, QuotesForTheShell) {
  EXPECT_EQ(ResumeCommand("train", {"--set", "a=[\"x*\"]", "", "it's"}, "my x"),
            "train --set 'a=[\"x*\"]' '' 'it'\\''s' --out='my x'");
}

TEST(CommandPrefixTest, IsWhatTheUserTyped) {
  ::unsetenv(kCommandVariable);
  ::unsetenv("BUILD_WORKING_DIRECTORY");
  EXPECT_EQ(CommandPrefix("./my train", "//t:train"), "'./my train'");
  ::setenv("BUILD_WORKING_DIRECTORY", "/home/ada", 1);
  EXPECT_EQ(CommandPrefix("/cache/train", "//t:train"),
            "bazel run //t:train --");
  ::setenv(kCommandVariable, "./run train", 1);
  EXPECT_EQ(CommandPrefix("/cache/train", "//t:train"), "./run train");
  ::unsetenv(kCommandVariable);
  ::unsetenv("BUILD_WORKING_DIRECTORY");
}

TEST(ProcessArgumentsTest, StartWithTheProgram) {
  const std::vector<std::string> arguments = ProcessArguments();
  ASSERT_FALSE(arguments.empty());
  EXPECT_NE(arguments[0].find("resume_command_test"), std::string::npos);
}

}  // namespace
}  // namespace tessera
