// Tests how programs handle shells, terminals, disks and schedulers.

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainers/program.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kManySteps[] = "--set training.steps=1000000";
constexpr char kNoSpace[] =
    "error: cannot write to stdout: No space left on device";

std::string Program(const std::string& name) {
  return FindRuntimeFile("trainers/" + name).value() + " ";
}

// Starts `train` in the background, waits until `ready` is true in the shell or
// the run has ended, and continues with `then`, in which $PID is the run. A run
// that does not end exceeds its CPU time limit.
std::string InBackground(const std::string& train, const std::string& ready,
                         const std::string& then) {
  return absl::StrCat("(ulimit -t 30; exec ", train, ") & PID=$!; until ",
                      ready, " 2>/dev/null || ! kill -0 $PID; do sleep 0.01; ",
                      "done; ", then);
}

// InBackground() for a run of many steps in `run`, after its third step.
std::string AfterThreeSteps(const std::string& train, const std::string& run,
                            const std::string& then) {
  return InBackground(absl::StrCat(train, " ", kManySteps, " --out=", run),
                      absl::StrCat("grep -q '\"step\":3,' ", run, "/run.jsonl"),
                      then);
}

TEST(DescriptorsTest, AFileOfTheRunNeverBecomesAStandardOne) {
  const std::string run = Folder("closed");
  const Outcome outcome = Shell(ToyTrain({"--out=" + run, "<&- >&- 2>&-"}));
  EXPECT_EQ(outcome.exit_code, 0);
  // Every line of the log can be parsed.
  EXPECT_THAT(Records(run, "step"), SizeIs(20));
  EXPECT_EQ(ReadFile(run + "/.lock").value(), "");
}

TEST(ConsoleTest, LosingItDoesNotStopTraining) {
  const std::string lost = "warning: cannot write to stdout: ";
  for (const auto& [name, redirection, reason] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"pipe", "| true", "Broken pipe"},
           {"full", "> /dev/full", "No space left on device"},
           {"shut", ">&-", "Bad file descriptor"}}) {
    const std::string run = Folder("console_" + name);
    const Outcome outcome =
        Shell(absl::StrCat("{ ", ToyTrain({"--out=" + run}),
                           "; echo exit $? >&2; } ", redirection));
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr("exit 0\n"), HasSubstr(lost + reason)));
    EXPECT_EQ(outcome.output.find(lost), outcome.output.rfind(lost));
    EXPECT_THAT(Records(run, "step"), SizeIs(20));
    EXPECT_THAT(ListDirectory(run + "/checkpoints").value(),
                ElementsAre("step_00000020"));
  }
}

TEST(ConsoleTest, LosingTheLaunchersDoesNotStopTraining) {
  const std::string run = Folder("console_launch");
  const Outcome outcome =
      Shell(absl::StrCat("{ ", Program("launch"), "--nproc=1", ToyFlags(),
                         "--out=", run, "; echo exit $? >&2; } | true"));
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("exit 0\n"), HasSubstr("Broken pipe")));
  EXPECT_THAT(Records(run, "step"), SizeIs(20));
}

TEST(StdoutTest, AResultThatCannotBePrintedIsAnError) {
  const std::string run = Folder("printed"), text = Folder("printed.txt");
  ASSERT_TRUE(WriteFileAtomically(text, "text\n").ok());
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run, "--set training.steps=3",
                            "--set data.default_text.tokenizer=BYTES"}))
                .exit_code,
            0);
  const std::string launch = Program("launch") + "--nproc=1 " + ToyFlags();
  for (const std::string& command :
       {ToyTrain({"--print_config"}), ToyTrain({"--dry_run"}),
        Program("train") + "--version", Program("launch") + "--help",
        launch + "--print_config", launch + "-dry_run", launch + "--print_step",
        launch + "--build_info", launch + "--version", launch + "-- --help",
        Program("generate") + "--max_tokens=3 --checkpoint=" + run,
        absl::StrCat(Program("prepare_data"), text, " --tokenizer=bytes",
                     " --validation_fraction=0 --out=", Folder("tokens"))}) {
    const Outcome outcome = Shell(command + " > /dev/full");
    EXPECT_EQ(outcome.exit_code, 2) << command << "\n" << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(kNoSpace)) << command;
  }
}

TEST(StdoutTest, AReportCanBePrintedButReplacesNoDevice) {
  const std::string run = Folder("reported"), out = Folder("report_out");
  ASSERT_EQ(
      Shell(ToyTrain({"--out=" + run, "--set training.steps=3"})).exit_code, 0);
  ASSERT_TRUE(MakeDirectories(out).ok());
  const std::string program = FindRuntimeFile("bench/report").value() + " ";
  const std::string report =
      absl::StrCat("cd ", out, "; ", program, run, " 2>/dev/null --out=");
  EXPECT_EQ(Shell(report + "page.html").exit_code, 0);
  const std::string page = ReadFile(out + "/page.html").value();
  EXPECT_THAT(page, HasSubstr("</html>"));
  EXPECT_EQ(Shell(report + "/dev/stdout").output, page);
  EXPECT_EQ(Shell(report + "/dev/stdout | cat").output, page);
  EXPECT_EQ(Shell(report + "/dev/stdout > printed.html").exit_code, 0);
  EXPECT_EQ(ReadFile(out + "/printed.html").value(), page);
  EXPECT_EQ(Shell("echo before > " + out + "/after.html; " + report +
                  "/dev/stdout >> after.html")
                .exit_code,
            0);
  EXPECT_EQ(ReadFile(out + "/after.html").value(), "before\n" + page);
  // Links, so that a fault removes no device.
  EXPECT_EQ(Shell(absl::StrCat("ln -s /dev/null ", out, "/null; ", report,
                               "null; [ -c null ]"))
                .exit_code,
            0);
  const Outcome full = Shell(absl::StrCat(
      "ln -s /dev/full ", out, "/full; ", program, run, " --out=", out,
      "/full; echo exit $?; [ -c ", out, "/full ]"));
  EXPECT_EQ(full.exit_code, 0);
  EXPECT_EQ(full.output, absl::StrCat("error: cannot write ", out,
                                      "/full: No space left on device\n"
                                      "exit 2\n"));
}

TEST(StdoutTest, ASampleAppearsWhileItIsGenerated) {
  const std::string run = Folder("sampled"), out = Folder("sample.txt");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run, "--set training.steps=3",
                            "--set data.default_text.tokenizer=BYTES"}))
                .exit_code,
            0);
  const std::string generate =
      absl::StrCat(Program("generate"),
                   "--prompt=hello --max_tokens=1048576 --checkpoint=", run);
  // Prompt and two tokens; the whole sample takes many minutes.
  const Outcome outcome = Shell(
      InBackground(generate + " > " + out, "[ $(wc -c < " + out + ") -ge 7 ]",
                   "kill -0 $PID && echo runs; kill -9 $PID; wait $PID"));
  EXPECT_THAT(outcome.output, HasSubstr("runs\n"));
  EXPECT_THAT(ReadFile(out).value(), ::testing::StartsWith("hello"));
  // The first write that fails ends it.
  const Outcome full = Shell("ulimit -t 30; " + generate + " > /dev/full");
  EXPECT_EQ(full.exit_code, 2);
  EXPECT_EQ(full.output, absl::StrCat(kNoSpace, "\n"));
}

TEST(RunFolderTest, RemovalEndsTheRunWithItsWeightsSaved) {
  const std::string run = Folder("removed"), other = Folder("continued");
  const Outcome outcome = Shell(AfterThreeSteps(
      ToyTrain({}), run + "/", absl::StrCat("rm -rf ", run, "; wait $PID")));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("/run.jsonl was removed, moved or replaced"));
  EXPECT_FALSE(FileExists(run));
  const auto saved = Glob(run + ".rescued-*").value();
  ASSERT_THAT(saved, SizeIs(1)) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("--resume=" + saved[0]));
  const Outcome resumed = Shell(ToyTrain(
      {"--resume=" + saved[0], "--out=" + other, "--set training.steps=3"}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("nothing to train: " + saved[0]));
}

TEST(RunFolderTest, ACheckpointDoesNotRecreateIt) {
  const std::string run = Folder("moved");
  // Nothing is logged after the first record.
  const Outcome outcome = Shell(InBackground(
      ToyTrain({kManySteps, "--set observe.log_every_steps=1000000",
                "--set training.eval_every_steps=1000000",
                "--set checkpoint.every_steps=3", "--out=" + run}),
      // The first of them may be gone before anyone looks.
      absl::StrCat("ls -d ", run, "/checkpoints/step_* > /dev/null 2>&1"),
      absl::StrCat("mv ", run, " ", run, ".away; wait $PID")));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_FALSE(FileExists(run));
  EXPECT_THAT(Glob(run + ".rescued-*").value(), SizeIs(1));
}

TEST(FileSizeTest, ExceedingTheShellsLimitIsAnErrorWithAReason) {
  const std::string run = Folder("limited");
  const Outcome outcome =
      Shell(absl::StrCat("ulimit -f 1; ", ToyTrain({"--out=" + run})));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr(run + "/run.jsonl: File too large"),
                    HasSubstr("ulimit -f")));
}

TEST(ConfigTest, AnEndlessFileIsRejected) {
  const Outcome outcome = Shell(Program("train") + "--config=/dev/zero");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.output,
              HasSubstr("cannot read /dev/zero: it is larger than 16777216"));
}

TEST(SignalTest, LostTerminalAndSlurmSaveAndSayHowToResume) {
  for (const auto& [name, code] :
       {std::pair<std::string, int>{"HUP", 129}, {"USR1", 138}}) {
    const std::string run = Folder("signal_" + name);
    const Outcome outcome = Shell(
        AfterThreeSteps(ToyTrain({"--resume never"}), run,
                        absl::StrCat("kill -", name, " $PID; wait $PID")));
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    const auto saved = ListDirectory(run + "/checkpoints").value();
    ASSERT_THAT(saved, SizeIs(1)) << outcome.output;
    EXPECT_THAT(outcome.output,
                HasSubstr(absl::StrCat("saved ", run, "/checkpoints/", saved[0],
                                       "\nresume with: ")));
    const std::string label = "resume with: ";
    std::string command =
        outcome.output.substr(outcome.output.find(label) + label.size());
    command.resize(command.find('\n'));
    const Outcome resumed = Shell(command + " --set training.steps=3");
    EXPECT_EQ(resumed.exit_code, 0) << command << "\n" << resumed.output;
    EXPECT_THAT(resumed.output, HasSubstr("nothing to train: "));
  }
}

TEST(SignalTest, TheLauncherIsPartOfTheCommandThatResumes) {
  const std::string run = Folder("signal_launch");
  const Outcome outcome = Shell(AfterThreeSteps(
      absl::StrCat(Program("launch"), "--timeout=90s --nproc 1 ", ToyFlags()),
      run, "kill -TERM $PID; wait $PID"));
  EXPECT_EQ(outcome.exit_code, 143) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr(absl::StrCat("resume with: ", Program("launch"),
                                     "--nproc=1 --timeout=1m30s --config=")));
}

TEST(SignalTest, NohupIsRespected) {
  const std::string run = Folder("signal_nohup");
  const Outcome outcome =
      Shell("trap '' HUP; " +
            AfterThreeSteps(ToyTrain({}), run,
                            "kill -HUP $PID; sleep 0.1; kill -TERM $PID; "
                            "wait $PID"));
  EXPECT_EQ(outcome.exit_code, 143) << outcome.output;
}

TEST(SignalTest, TheSecondEndsALongStepUnlessItIsARepeat) {
  const std::string run = Folder("signal_twice");
  // One step takes minutes.
  const Outcome outcome = Shell(InBackground(
      ToyTrain({"--set training.batch_size=200000",
                "--set training.micro_batches=200000", "--out=" + run}),
      absl::StrCat("grep -q '\"type\":\"run\"' ", run, "/run.jsonl"),
      "kill -INT $PID; kill -TERM $PID; sleep 0.1; "
      "kill -0 $PID && echo goes on; sleep 1; kill -TERM $PID; wait $PID"));
  EXPECT_THAT(outcome.output, HasSubstr("goes on\n"));
  EXPECT_EQ(outcome.exit_code, 143) << outcome.output;
  // The step did not finish.
  EXPECT_FALSE(FileExists(run + "/checkpoints"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("stopped by signal")));
}

}  // namespace
}  // namespace tessera
