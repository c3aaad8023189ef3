// Runs the `generate` program as a user does.

#include <cstdio>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainers/program.h"

namespace tessera {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

// Words that repeat, without order.
std::string LongText() {
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    absl::StrAppend(&text, i * i % 7 < 3 ? "the cat" : "a dog", " saw ", i % 13,
                    i % 3 == 0 ? " birds.\n" : " trees, ");
  }
  return text;
}

std::vector<int> AllBytes() {
  std::vector<int> bytes(256);
  std::iota(bytes.begin(), bytes.end(), 0);
  return bytes;
}

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
  const Outcome b = Shell(generate + "--seed=4");
  EXPECT_NE(a.output, b.output);
  EXPECT_EQ(Shell(generate + "--seed=3 --samples=2").output,
            a.output.substr(0, a.output.size() - 1) + "\n---\n" + b.output);
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
         "error: --prompt, byte 3: 0xe9 is not UTF-8; "},
        {"--stop=ok --stop=\"$(printf '\\251')\"",
         "error: --stop, byte 0: 0xa9 is not UTF-8; "},
        {"--precision=bf16",
         "error: --precision=bf16: must be FP32, TF32, BF16, FP16 or "
         "BF16_PURE\n"}}) {
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
  // Tokens that end a text, of an imported model.
  const std::string ends = model + "/generation_config.json";
  const nlohmann::json bytes = {{"eos_token_id", AllBytes()}};
  ASSERT_TRUE(WriteFileAtomically(ends, bytes.dump()).ok());
  EXPECT_EQ(Shell(generate + model).output, "int main\n");
  ASSERT_TRUE(WriteFileAtomically(ends, R"({"eos_token_id": [1, "x"]})").ok());
  const Outcome no_id = Shell(generate + model);
  EXPECT_EQ(no_id.exit_code, 2);
  EXPECT_THAT(no_id.output,
              HasSubstr(ends + ": eos_token_id must be a token id, a list of "
                               "token ids or null; is "));
  // Errors in the tokenizer name file and field.
  ASSERT_TRUE(
      WriteFileAtomically(model + "/tokenizer.json", R"({"kind": 5})").ok());
  const Outcome refused = Shell(generate + model);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(
      refused.output,
      HasSubstr(model + "/tokenizer.json: kind must be a string; is 5"));
  // A tokenizer of transformers that is not a byte-level BPE: Mistral 7B's.
  ASSERT_TRUE(
      WriteFileAtomically(
          model + "/tokenizer.json",
          R"({"normalizer": {"type": "Sequence"}, "model": {"type": "BPE"}})")
          .ok());
  const Outcome other = Shell(generate + model);
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.output,
              HasSubstr("normalizer must be null or NFC; is \"Sequence\"; give "
                        "the prompt as token ids, --prompt_tokens=1,2,3\n"));
}

// The size of the parameters in KiB, as an error of a program has it.
double ParametersOf(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 3) << outcome.output;
  const size_t at = outcome.output.find("  parameters");
  double kib = 0;
  EXPECT_EQ(std::sscanf(outcome.output.substr(at).c_str(),
                        " parameters %lf KiB", &kib),
            1)
      << outcome.output;
  return kib;
}

TEST(GenerateTest, APrecisionReplacesThatOfTheRun) {
  const std::string run = Folder("precise"), model = Folder("long_context");
  const Outcome trained =
      Shell(ToyTrain({"--out=" + run, "--set model.num_layers=16"}) +
            absl::StrCat("; mkdir ", model, "; cd ", run,
                         "/checkpoints/step_00000020; cp model.safetensors ",
                         model, "; sed 's/^  context_length: 16$/",
                         "  context_length: 2147483647/' config.pbtxt > ",
                         model, "/config.pbtxt"));
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const std::string generate =
      absl::StrCat(FindRuntimeFile("trainers/generate").value(),
                   " --device=CPU --prompt_tokens=1 --checkpoint=");
  const Outcome half =
      Shell(generate + run + " --max_tokens=5 --precision=BF16_PURE");
  EXPECT_EQ(half.exit_code, 0) << half.output;
  EXPECT_THAT(half.output, MatchesRegex("1(,[0-9]+){5}\n"));
  // No memory is large enough for such keys and values: 2 TiB in BF16.
  const std::string large =
      generate + model + " --samples=1024 --max_tokens=1048576 ";
  const Outcome full = Shell(large);
  EXPECT_THAT(full.output, HasSubstr("half the size: --precision=BF16\n"));
  const Outcome pure = Shell(large + "--precision=BF16_PURE");
  EXPECT_THAT(pure.output, Not(HasSubstr("--precision")));
  EXPECT_NEAR(ParametersOf(pure), ParametersOf(full) / 2, 0.01);
}

TEST(GenerateTest, UsesATokenizerInHuggingFacesFormat) {
  const std::string tokens = Folder("tokens"), run = Folder("byte_level");
  const std::string text = Folder("text.txt");
  ASSERT_TRUE(WriteFileAtomically(text, LongText()).ok());
  const std::string prepare =
      absl::StrCat(FindRuntimeFile("trainers/prepare_data").value(),
                   " --input=", text, " --out=");
  ASSERT_EQ(Shell(absl::StrCat(prepare, tokens,
                               " --tokenizer=byte_level_bpe --vocab_size=270"))
                .exit_code,
            0);
  const std::string data =
      absl::StrCat("--set 'data.token_files={train: \"", tokens, "\"}' ");
  const Outcome too_small =
      Shell(ToyTrain({data, "--out=" + run}) + " --set model.vocab_size=269");
  EXPECT_EQ(too_small.exit_code, 2);
  EXPECT_THAT(too_small.output,
              HasSubstr("data.token_files.train: " + tokens +
                        "/tokenizer.json: the tokenizer has token ids up to "
                        "269, but model.vocab_size is 269"));
  const Outcome trained =
      Shell(ToyTrain({data, "--out=" + run}) + " --set model.vocab_size=272");
  ASSERT_EQ(trained.exit_code, 0) << trained.output;

  // The checkpoint holds the file itself, and another one can be used.
  const std::string saved = run + "/checkpoints/step_00000020/tokenizer.json";
  const std::string file = ReadFile(saved).value();
  EXPECT_EQ(file, ReadFile(tokens + "/tokenizer.json").value());
  const std::string generate =
      absl::StrCat(FindRuntimeFile("trainers/generate").value(),
                   " --prompt='the cat' --max_tokens=20 --checkpoint=");
  const Outcome sample = Shell(generate + run);
  EXPECT_EQ(sample.exit_code, 0) << sample.output;
  EXPECT_THAT(sample.output, StartsWith("the cat"));
  const std::string again = Folder("again");
  const Outcome sized = Shell(absl::StrCat(
      prepare, again, " --tokenizer=", saved, " --vocab_size=300"));
  EXPECT_EQ(sized.exit_code, 2);
  EXPECT_THAT(sized.output,
              HasSubstr("--vocab_size is for a vocabulary that is learned"));
  ASSERT_EQ(
      Shell(absl::StrCat(prepare, again, " --tokenizer=", saved)).exit_code, 0);
  EXPECT_EQ(ReadFile(again + "/train.tok").value(),
            ReadFile(tokens + "/train.tok").value());

  // A file whose ids the model does not have.
  const std::string model = Folder("small_model"), large = Folder("large");
  ASSERT_EQ(Shell(absl::StrCat(prepare, large, " --vocab_size=275",
                               " --tokenizer=byte_level_bpe; mkdir ", model,
                               "; cd ", run, "/checkpoints/step_00000020; cp ",
                               "model.safetensors config.pbtxt ", model))
                .exit_code,
            0);
  const std::string other = ReadFile(large + "/tokenizer.json").value();
  ASSERT_TRUE(WriteFileAtomically(model + "/tokenizer.json", other).ok());
  const Outcome refused = Shell(generate + model);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output,
              HasSubstr(model + "/tokenizer.json: the tokenizer has token ids "
                                "up to 274, but model.vocab_size is 272"));
}

TEST(GenerateTest, ARunWithoutTokenizerIsRejectedWithAdvice) {
  const std::string run = Folder("textless");
  const TokenFileFlags file = NanoGptTokens("textless_tokens", 100);
  const Outcome refused = Shell(absl::StrCat(
      file.before, ToyTrain({file.flags, "--out=" + run}), "; ",
      FindRuntimeFile("trainers/generate").value(), " --checkpoint=", run));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(
      refused.output,
      HasSubstr(run + "/checkpoints/step_00000020 has no tokenizer.json: "));
  EXPECT_THAT(refused.output, HasSubstr("--prompt_tokens=1,2,3"));
  EXPECT_THAT(refused.output,
              HasSubstr("a run on a folder of trainers:prepare_data"));
}

TEST(GenerateTest, ContinuesTokenIdsWithoutATokenizer) {
  const std::string run = Folder("ids");
  const TokenFileFlags file = NanoGptTokens("ids_tokens", 100);
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
        // Before the plan, which refuses the precision on a CPU.
        {"--prompt_tokens=1,300 --precision=FP16 --device=CPU",
         "token id 300, but the model's vocabulary"},
        {"--prompt_tokens=1 --precision=FP16 --device=CPU",
         "precision.mode FP16 needs a GPU"},
        {"--prompt_tokens=1 --prompt=a", "both set"}}) {
    const Outcome refused = Shell(generate + flags);
    EXPECT_EQ(refused.exit_code, 2) << flags;
    EXPECT_THAT(refused.output, HasSubstr(message));
  }
}

}  // namespace
}  // namespace tessera
