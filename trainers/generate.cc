// Continues a prompt with a trained model:
//   bazel run //trainers:generate -- --checkpoint=runs/x --prompt='#include'

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/process.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/device.h"
#include "framework/data/tokenize/utf8.h"
#include "trainers/build_info.h"
#include "trainers/generation/text_generation.h"
#include "trainers/hugging_face/generation_config.h"
#include "trainers/plan/run_plan.h"
#include "trainers/program_flags.h"
#include "trainers/run/model_run_config.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/training_state.h"

namespace {

std::vector<std::string>& StopTexts() {
  static auto* texts = new std::vector<std::string>;
  return *texts;
}

}  // namespace

ABSL_FLAG(std::string, checkpoint, "",
          "a checkpoint, the folder of a run, or a folder with a checkpoint's "
          "model.safetensors (or its index and the files there), config.pbtxt "
          "and tokenizer.json");
ABSL_FLAG(std::string, weights, "TRAINED",
          "TRAINED, or EMA for their average, which a run with optimizer.ema "
          "keeps");
ABSL_FLAG(std::string, prompt, "",
          "text in UTF-8 to continue; empty: starts a document");
ABSL_FLAG(std::string, prompt_tokens, "",
          "token ids to continue, as in 1,2,3, instead of --prompt; prints "
          "token ids, so it needs no tokenizer and does not stop at the end of "
          "a document");
ABSL_FLAG(int, max_tokens, 200,
          "maximum length of the sample, at most 1048576");
ABSL_FLAG(double, temperature, 0.8,
          "finite, >= 0; 0 takes the most likely token");
ABSL_FLAG(int, top_k, 0, "sample from the k most likely tokens; 0: from all");
ABSL_FLAG(double, top_p, 0.95,
          "sample from the fewest tokens whose probabilities reach this sum");
ABSL_FLAG(double, min_p, 0,
          "sample from tokens at least this share as likely as the likeliest");
ABSL_FLAG(double, repetition_penalty, 1,
          "above 1: tokens that are in the text, prompt included, become less "
          "likely; in [0.01, 100]");
ABSL_FLAG(std::string, stop, "",
          "text in UTF-8 that ends the sample, and is not printed; may be "
          "repeated; not with --prompt_tokens")
    .OnUpdate([] {
      const std::string text = absl::GetFlag(FLAGS_stop);
      if (!text.empty()) StopTexts().push_back(text);
    });
ABSL_FLAG(int, samples, 1,
          "number of samples, generated at the same time; in [1, 1024]");
ABSL_FLAG(uint64_t, seed, 0,
          "equal seeds give equal samples; each further sample uses the next "
          "seed");
ABSL_FLAG(
    std::string, device, "",
    "CPU or CUDA; default: the one that the run was trained on; CUDA for a "
    "folder without a run");

ABSL_FLAG(std::string, precision, "",
          "FP32, TF32, BF16, FP16 or BF16_PURE, as precision.mode; default: "
          "that of the run; FP32 for a folder of transformers, or on a CPU "
          "instead of TF32 and FP16");

namespace tessera {
namespace {

// Sets the precision that --precision names. Without it, keeps that of the run,
// unless it needs a GPU and the device is a CPU.
absl::Status ChoosePrecision(RunConfig* config) {
  const std::string precision = absl::GetFlag(FLAGS_precision);
  PrecisionConfig::Mode mode = config->precision().mode();
  if (precision.empty()) {
    if (config->training().device() == TrainingConfig::CPU &&
        (mode == PrecisionConfig::TF32 || mode == PrecisionConfig::FP16)) {
      mode = PrecisionConfig::FP32;
    }
  } else if (!PrecisionConfig::Mode_Parse(precision, &mode) ||
             mode == PrecisionConfig::UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("--precision=", precision,
                     ": must be FP32, TF32, BF16, FP16 or BF16_PURE"));
  }
  config->mutable_precision()->set_mode(mode);
  return absl::OkStatus();
}

// Prints a piece of the sample at once.
absl::Status Print(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  return FlushResult(stdout);
}

absl::Status CheckText(absl::string_view flag, absl::string_view text,
                       absl::string_view advice) {
  const std::string fault = Utf8Fault(text);
  if (fault.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ", ", fault, "; ", advice));
}

absl::StatusOr<SamplingOptions> SamplingFromFlags() {
  for (const std::string& stop : StopTexts()) {
    RETURN_IF_ERROR(CheckText("--stop", stop, "give text in UTF-8"));
  }
  const SamplingOptions sampling{
      .temperature = absl::GetFlag(FLAGS_temperature),
      .top_k = absl::GetFlag(FLAGS_top_k),
      .top_p = absl::GetFlag(FLAGS_top_p),
      .min_p = absl::GetFlag(FLAGS_min_p),
      .repetition_penalty = absl::GetFlag(FLAGS_repetition_penalty),
      .samples = absl::GetFlag(FLAGS_samples),
      .seed = absl::GetFlag(FLAGS_seed),
      .max_tokens = absl::GetFlag(FLAGS_max_tokens),
      .stop_texts = StopTexts()};
  RETURN_IF_ERROR(Validate(sampling));
  return sampling;
}

// Sets the device that --device names, if any, and checks that it is there.
absl::Status ChooseDevice(TrainingConfig* training) {
  if (const std::string device = absl::GetFlag(FLAGS_device); !device.empty()) {
    TrainingConfig::Device value;
    if (!TrainingConfig::Device_Parse(device, &value) ||
        value == TrainingConfig::UNSPECIFIED) {
      return absl::InvalidArgumentError(
          absl::StrCat("--device=", device, ": must be CPU or CUDA"));
    }
    training->set_device(value);
  }
  if (training->device() != TrainingConfig::CUDA) return absl::OkStatus();
  // PlanGeneration() opens it, too, but its error names a flag of `train`.
  return OpenCudaDevice(0, "--device=CPU").status();
}

// Without tokens it is a text.
absl::StatusOr<Prompt> PromptFromFlags() {
  Prompt prompt{.text = absl::GetFlag(FLAGS_prompt)};
  RETURN_IF_ERROR(
      CheckText("--prompt", prompt.text,
                "give text in UTF-8, or token ids with --prompt_tokens"));
  ASSIGN_OR_RETURN(
      prompt.tokens,
      ParseTokenIds(absl::GetFlag(FLAGS_prompt_tokens), "--prompt_tokens"));
  if (!prompt.tokens.empty() && !prompt.text.empty()) {
    return absl::InvalidArgumentError(
        "--prompt and --prompt_tokens are both set; give one of them");
  }
  if (!prompt.tokens.empty() && !StopTexts().empty()) {
    return absl::InvalidArgumentError(
        "--stop is text, but --prompt_tokens prints token ids; leave one out");
  }
  return prompt;
}

absl::Status Run() {
  const std::string path = absl::GetFlag(FLAGS_checkpoint);
  if (path.empty()) {
    return absl::InvalidArgumentError(
        "--checkpoint is missing: a checkpoint, or the folder of a run");
  }
  ASSIGN_OR_RETURN(SamplingOptions sampling, SamplingFromFlags());
  ASSIGN_OR_RETURN(Prompt prompt, PromptFromFlags());
  ASSIGN_OR_RETURN(const Checkpoint::Part part,
                   ModelPart(absl::GetFlag(FLAGS_weights)));
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                   OpenModel(UserPath(path), {}, part));
  ASSIGN_OR_RETURN(RunConfig config, ModelRunConfig(*checkpoint));
  RETURN_IF_ERROR(ChooseDevice(config.mutable_training()));
  RETURN_IF_ERROR(ChoosePrecision(&config));
  std::unique_ptr<Tokenizer> tokenizer;  // null for token ids
  if (prompt.tokens.empty()) {
    ASSIGN_OR_RETURN(tokenizer,
                     TokenizerOf(*checkpoint, config.model().vocab_size()));
    ASSIGN_OR_RETURN(prompt,
                     MakePrompt(*tokenizer, config.data(), prompt.text));
    ASSIGN_OR_RETURN(const GenerationConfig generation,
                     ReadGenerationConfig(checkpoint->folder()));
    sampling.stop_tokens = generation.end_tokens;
  }
  RETURN_IF_ERROR(CheckTokenIds(prompt.tokens, config.model().vocab_size()));
  const auto tokens = static_cast<int64_t>(prompt.tokens.size());
  ASSIGN_OR_RETURN(
      const RunPlan plan,
      PlanGeneration(config, {.prompt = tokens,
                              .tokens = tokens + sampling.max_tokens,
                              .texts = sampling.samples}));
  ASSIGN_OR_RETURN(const std::unique_ptr<ParameterStore> parameters,
                   MakeParameters(plan));
  RETURN_IF_ERROR(RestoreParameters(*checkpoint, parameters.get()));
  NextTokenModel model(plan, *parameters);
  if (tokenizer == nullptr) {
    RETURN_IF_ERROR(SampleTokens(model, prompt.tokens, sampling, Print));
  } else {
    RETURN_IF_ERROR(SampleText(model, *tokenizer, prompt, sampling, Print));
  }
  return Print("\n");
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgram(
      argc, argv,
      {.usage =
           "continues a prompt: generate --checkpoint=DIR [--prompt=TEXT | "
           "--prompt_tokens=1,2,3]",
       .version = tessera::BuildSummary()},
      [] { return tessera::StatusFromTorchOr(tessera::Run); });
}
