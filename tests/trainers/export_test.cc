// Runs the programs `export` and `import` as a user does.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainers/program.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

std::string Program(const std::string& name) {
  return FindRuntimeFile("trainers/" + name).value() + " ";
}

class ExportTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    run_ = new std::string(Folder("run"));
    ASSERT_EQ(
        Shell(ToyTrain({"--out=" + *run_, "--set training.steps=3"})).exit_code,
        0);
  }

  static std::string* run_;
};
std::string* ExportTest::run_ = nullptr;

TEST_F(ExportTest, AModelComesBackAndIsTrainedAndSampledFrom) {
  const std::string theirs = Folder("theirs"), ours = Folder("ours");
  const Outcome exported =
      Shell(absl::StrCat(Program("export"), *run_, " ", theirs));
  ASSERT_EQ(exported.exit_code, 0) << exported.output;
  EXPECT_THAT(exported.output, HasSubstr("wrote " + theirs));
  const Outcome imported =
      Shell(absl::StrCat(Program("import"), theirs, " ", ours));
  ASSERT_EQ(imported.exit_code, 0) << imported.output;
  const auto sample = [&](const std::string& from) {
    return Shell(absl::StrCat(Program("generate"), "--checkpoint=", from,
                              " --prompt_tokens=1,2,3 --max_tokens=20 "
                              "--temperature=0 --device=CPU"))
        .output;
  };
  EXPECT_THAT(sample(*run_), HasSubstr("1,2,3,"));
  EXPECT_EQ(sample(theirs), sample(*run_));
  EXPECT_EQ(sample(ours), sample(*run_));
  // The imported config comes after the toy's, whose layout is INTERLEAVED.
  for (const std::string& from : {theirs, ours}) {
    const Outcome trained =
        Shell(ToyTrain({absl::StrCat("--config=", ours, "/config.pbtxt"),
                        "--set checkpoint.init_from=" + from,
                        "--out=" + Folder("tuned"), "--set training.steps=3"}));
    EXPECT_EQ(trained.exit_code, 0) << trained.output;
  }
  const Outcome refused = Shell(ToyTrain(
      {"--set checkpoint.init_from=" + theirs, "--out=" + Folder("tuned")}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("set model.rope_layout=HALVED"));
}

TEST_F(ExportTest, TheAverageIsExportedAndSampledFrom) {
  const std::string run = Folder("averaged"), model = Folder("average");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run, "--set optimizer.adamw.lr=0.1",
                            "--set optimizer.ema.decay=0.9",
                            "--set 'model.frozen=[\"layers.0.*\"]'"}))
                .exit_code,
            0);
  const std::string checkpoint = run + "/checkpoints/step_00000020/";
  ASSERT_EQ(Shell(absl::StrCat("mkdir ", model, "; cp ", checkpoint,
                               "config.pbtxt ", model, "; cp ", checkpoint,
                               "ema.safetensors ", model, "/model.safetensors"))
                .exit_code,
            0);
  const auto sample = [](const std::string& from, const std::string& flags) {
    return Shell(absl::StrCat(Program("generate"), "--checkpoint=", from,
                              " --prompt_tokens=1,2,3 --max_tokens=40 ", flags))
        .output;
  };
  EXPECT_THAT(sample(run, "--weights=EMA"), HasSubstr("1,2,3,"));
  EXPECT_EQ(sample(run, "--weights=EMA"), sample(model, ""));
  EXPECT_EQ(sample(run, "--weights=TRAINED"), sample(run, ""));
  EXPECT_NE(sample(run, ""), sample(model, ""));
  const auto exported = [](const std::string& from, const std::string& flags) {
    const std::string out = Folder("theirs");
    const Outcome outcome =
        Shell(absl::StrCat(Program("export"), from, " ", out, " ", flags));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return ReadFile(out + "/model.safetensors").value();
  };
  EXPECT_TRUE(exported(run, "--weights=EMA") == exported(model, ""));
  EXPECT_FALSE(exported(run, "") == exported(model, ""));
}

TEST_F(ExportTest, MistakesEndWithExitCode2AndWithoutAFolder) {
  const std::string out = Folder("out"), empty = Folder("empty");
  ASSERT_TRUE(MakeDirectories(empty).ok());
  ASSERT_TRUE(
      WriteFileAtomically(empty + "/config.json", "{\"model_type\": \"gpt2\"}")
          .ok());
  for (const auto& [command, message] :
       std::vector<std::pair<std::string, std::string>>{
           {Program("export") + *run_, "export RUN OUT; given are 1"},
           {Program("import"), "import DIR OUT; given are 0"},
           {absl::StrCat(Program("export"), *run_, " ", out, " --dtype=F8"),
            "--dtype=F8: must be FP32, BF16 or FP16"},
           {absl::StrCat(Program("export"), *run_, " ", out,
                         " --max_file_mib=0"),
            "--max_file_mib=0: must be in [1, 1048576]"},
           {absl::StrCat(Program("export"), *run_, " ", out, " --weights=SWA"),
            "--weights=SWA: must be TRAINED or EMA"},
           {absl::StrCat(Program("export"), *run_, " ", out, " --weights=EMA"),
            "step_00000003 has no averaged weights (ema.safetensors)"},
           {absl::StrCat(Program("generate"), "--checkpoint=", *run_,
                         " --prompt_tokens=1 --weights=EMA"),
            "use its weights (--weights=TRAINED)\n"},
           {absl::StrCat(Program("export"), *run_, " ", empty),
            "empty exists; remove it or choose another output folder"},
           {absl::StrCat(Program("export"), "/nowhere ", out),
            "/nowhere: neither a checkpoint"},
           {absl::StrCat(Program("import"), "/nowhere ", out),
            "cannot read /nowhere/config.json"},
           {absl::StrCat(Program("import"), *run_, " ", out), "config.json"},
           {absl::StrCat(Program("import"), empty, " ", out),
            "empty/config.json: model_type is \"gpt2\"; Tessera reads"}}) {
    const Outcome refused = Shell(command);
    EXPECT_EQ(refused.exit_code, 2) << command;
    EXPECT_THAT(refused.output, HasSubstr(message));
    EXPECT_FALSE(FileExists(out));
  }
}

}  // namespace
}  // namespace tessera
