// Runs the `generate` program as a user does.

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainers/program.h"

namespace tessera {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST(GenerateTest, EqualSeedsGiveEqualSamplesAndBadOptionsAreRefused) {
  const std::string run = Folder("generate");
  // Selects real text, whose tokenizer is saved; the last --set of a oneof
  // wins.
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run,
                            "--set data.default_text.tokenizer=BYTES"}))
                .exit_code,
            0);
  const std::string generate = absl::StrCat(
      FindRuntimeFile("trainers/generate").value(), " --checkpoint=", run,
      " --prompt='int main' --max_tokens=20 ");
  const Outcome a = Shell(generate + "--seed=3");
  EXPECT_EQ(a.exit_code, 0);
  EXPECT_EQ(a.output.rfind("int main", 0), 0u) << a.output;
  EXPECT_EQ(a.output, Shell(generate + "--seed=3").output);
  EXPECT_NE(a.output, Shell(generate + "--seed=4").output);
  const Outcome refused = Shell(generate + "--top_p=0 --temperature=-1");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output,
              HasSubstr("temperature must be a finite number >= 0; is -1"));
  EXPECT_THAT(refused.output, HasSubstr("top_p must be in (0, 1]"));
  for (const auto& [flags, message] :
       {std::pair<std::string, std::string>{
            "--temperature=inf", "temperature must be a finite number >= 0"},
        {"--max_tokens=2000000000", "max_tokens must be in [1, 1048576]"},
        {"--prompt=\"$(printf 'caf\\351')\"",
         "error: --prompt, byte 3: 0xe9 is not UTF-8; "}}) {
    const Outcome outcome = Shell(generate + flags);
    EXPECT_EQ(outcome.exit_code, 2) << flags;
    EXPECT_THAT(outcome.output, HasSubstr(message));
  }
  const Outcome nowhere = Shell(generate + "--device=UNSPECIFIED");
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_THAT(nowhere.output, HasSubstr("--device=UNSPECIFIED: must be CPU"));
  const Outcome on_gpu = Shell(generate + "--device=CUDA");
  if (on_gpu.exit_code != 0) {  // this machine has no GPU
    EXPECT_EQ(on_gpu.exit_code, 2);
    EXPECT_THAT(on_gpu.output, HasSubstr("use the CPU: --device=CPU\n"));
  }
}

TEST(GenerateTest, NeedsOnlyModelConfigAndTokenizer) {
  const std::string run = Folder("generate_from"), model = Folder("model");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run,
                            "--set data.default_text.tokenizer=BYTES"}))
                .exit_code,
            0);
  const std::string checkpoint = run + "/checkpoints/step_00000020";
  const std::string flags =
      " --prompt='int main' --max_tokens=20 --checkpoint=";
  const std::string generate =
      FindRuntimeFile("trainers/generate").value() + flags;
  const Outcome whole = Shell(generate + run);
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  ASSERT_EQ(Shell(absl::StrCat("mkdir ", model, "; cd ", checkpoint,
                               "; cp model.safetensors config.pbtxt "
                               "tokenizer.json ",
                               model, "; rm optimizer.safetensors state.json"))
                .exit_code,
            0);
  for (const std::string& from : {run, checkpoint, model}) {
    const Outcome outcome = Shell(generate + from);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(outcome.output, whole.output);
  }
  // Errors in the tokenizer name file and field.
  ASSERT_TRUE(
      WriteFileAtomically(model + "/tokenizer.json", R"({"kind": 5})").ok());
  const Outcome refused = Shell(generate + model);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(
      refused.output,
      HasSubstr(model + "/tokenizer.json: kind must be a string; is 5"));
}

TEST(GenerateTest, ARunWithoutTokenizerIsRejectedWithAdvice) {
  const std::string run = Folder("textless");
  const TokenFile file = NanoGptTokens("textless_tokens", 100);
  const Outcome refused = Shell(absl::StrCat(
      file.before, ToyTrain({file.flags, "--out=" + run}), "; ",
      FindRuntimeFile("trainers/generate").value(), " --checkpoint=", run));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output,
              HasSubstr(run + "/checkpoints/step_00000020 has no tokenizer: "));
  EXPECT_THAT(refused.output, HasSubstr("--prompt_tokens=1,2,3"));
  EXPECT_THAT(refused.output,
              HasSubstr("train on a folder of trainers:prepare_data"));
}

TEST(GenerateTest, ContinuesTokenIdsWithoutATokenizer) {
  const std::string run = Folder("ids");
  const TokenFile file = NanoGptTokens("ids_tokens", 100);
  const Outcome trained =
      Shell(file.before + ToyTrain({file.flags, "--out=" + run,
                                    "--set training.sample_tokens_at_end=3"}));
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_THAT(trained.output,
              ContainsRegex("--- sample, token ids\n0,[0-9]+,[0-9]+,[0-9]+\n"));
  const Outcome text_prompt = Shell(
      ToyTrain({file.flags, "--out=" + Folder("ids_text"),
                "--set training.sample_tokens_at_end=3",
                "--set training.steps=3 --set training.sample_prompt=once"}));
  EXPECT_EQ(text_prompt.exit_code, 0);
  EXPECT_THAT(text_prompt.output,
              HasSubstr("warning: no sample: the data has no tokenizer, and "
                        "training.sample_prompt: 'once' is not a token id"));
  const std::string generate =
      absl::StrCat(FindRuntimeFile("trainers/generate").value(),
                   " --checkpoint=", run, " --max_tokens=3 ");
  const Outcome ids = Shell(generate + "--prompt_tokens=7,0,299");
  EXPECT_EQ(ids.exit_code, 0) << ids.output;
  EXPECT_THAT(ids.output, MatchesRegex("7,0,299,[0-9]+,[0-9]+,[0-9]+\n"));
  for (const auto& [flags, message] :
       {std::pair<std::string, std::string>{
            "--prompt_tokens=1,x", "--prompt_tokens: 'x' is not a token id"},
        {"--prompt_tokens=1,-1", "'-1' is not a token id"},
        {"--prompt_tokens=1,300",
         "token id 300, but the model's vocabulary "
         "has ids from 0 to 299"},
        {"--prompt_tokens=1 --prompt=a", "both set"}}) {
    const Outcome refused = Shell(generate + flags);
    EXPECT_EQ(refused.exit_code, 2) << flags;
    EXPECT_THAT(refused.output, HasSubstr(message));
  }
}

}  // namespace
}  // namespace tessera
