// Converts text to a folder of tokens for trainers:train.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/data/prepare/byte_stream.h"
#include "framework/data/prepare/prepare_text.h"
#include "framework/data/prepare/progress.h"
#include "framework/data/prepare/unpack.h"
#include "framework/data/tokenize/split_pattern.h"
#include "framework/data/tokenize/tokenizer.h"
#include "framework/observe/format.h"
#include "trainers/program_flags.h"
#include "trainers/run/stop_signal.h"
#include "trainers/version.h"

ABSL_FLAG(
    std::vector<std::string>, input, {},
    "text or JSONL files, plain or compressed (.gz, .zst): paths or shell "
    "patterns, separated by commas; more may follow as arguments without a "
    "flag; - is standard input");
ABSL_FLAG(std::string, out, "", "the folder to create; must not exist");
ABSL_FLAG(
    std::string, tokenizer, "bpe",
    "the path of a Hugging Face tokenizer.json (byte-level BPE), or bpe: "
    "SentencePiece, learned from the text; byte_level_bpe: learned from the "
    "text, gives a tokenizer.json; bytes: 256 bytes and an end of document");
ABSL_FLAG(int64_t, vocab_size, 10000,
          "size of the vocabulary to learn; a short text gives fewer tokens");
ABSL_FLAG(std::string, split_pattern, "llama3",
          "pattern by which a learned byte_level_bpe splits text before it "
          "merges: gpt2, llama3 (also cl100k's) or qwen2");
ABSL_FLAG(double, validation_fraction, 0.01,
          "fraction of the text to hold out, in [0, 0.5]: documents, or the "
          "end of a single document");
ABSL_FLAG(std::string, separator, "<|endoftext|>",
          "separator of documents inside a file; empty: one document per file");
ABSL_FLAG(
    std::string, format, "auto",
    "text; jsonl: each line is a JSON object whose --field is a document; "
    "auto: jsonl for files called .jsonl or .ndjson, also with .gz or .zst "
    "after it, else text, but not for .json, which may be either");
ABSL_FLAG(std::string, field, "text",
          "the field of a JSON line that has the text");
ABSL_FLAG(bool, skip_invalid, false,
          "skip files that are not UTF-8 text, and lines of JSONL without a "
          "text, and name them, instead of stopping at the first");
ABSL_FLAG(uint64_t, seed, 0, "chooses the documents to hold out");
ABSL_FLAG(int, threads, 0, "number of threads; 0: one per core");

namespace tessera {
namespace {

void PrintSplit(absl::string_view name, const SplitManifest& split) {
  absl::PrintF("%-11s%12s  %10s  %s\n", name,
               FormatCountOf(split.tokens, "token"), FormatBytes(split.bytes),
               FormatCountOf(split.documents, "document"));
}

void PrintSummary(const std::string& out, const Manifest& manifest) {
  PrintSplit("train", manifest.train);
  PrintSplit("validation", manifest.validation);
  absl::PrintF("vocabulary %12d (%s)\n", manifest.vocab_size,
               Name(manifest.tokenizer));
  absl::PrintF("entropy    %12.3f nats per token without context\n",
               manifest.unigram_entropy);
  absl::PrintF("train on it with data { token_files { train: \"%s\" } }\n",
               out);
}

absl::Status SetTokenizer(PrepareOptions* options) {
  const std::string given = absl::GetFlag(FLAGS_tokenizer);
  if (absl::StrContains(given, '/') || absl::EndsWith(given, ".json")) {
    for (const absl::CommandLineFlag* flag :
         {&absl::GetFlagReflectionHandle(FLAGS_vocab_size),
          &absl::GetFlagReflectionHandle(FLAGS_split_pattern)}) {
      if (flag->CurrentValue() == flag->DefaultValue()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag->Name(),
                       " is for a vocabulary that is learned from the "
                       "text, but ",
                       given, " has one; remove the flag"));
    }
    options->tokenizer = TokenizerKind::kByteLevelBpe;
    options->tokenizer_file = UserPath(given);
    return absl::OkStatus();
  }
  const absl::StatusOr<TokenizerKind> kind = TokenizerKindFromName(given);
  if (!kind.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tokenizer: ", kind.status().message(),
                     ", or the path of a tokenizer.json"));
  }
  options->tokenizer = *kind;
  const absl::StatusOr<absl::string_view> pattern =
      SplitPatternByName(absl::GetFlag(FLAGS_split_pattern));
  if (!pattern.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--split_pattern: ", pattern.status().message()));
  }
  options->split_pattern = std::string(*pattern);
  return absl::OkStatus();
}

absl::Status SetFormat(PrepareOptions* options) {
  const absl::StatusOr<InputFormat> format =
      InputFormatFromName(absl::GetFlag(FLAGS_format));
  if (!format.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--format ", format.status().message()));
  }
  options->input_format = *format;
  options->json_field = absl::GetFlag(FLAGS_field);
  return absl::OkStatus();
}

absl::Status Run(const std::vector<std::string>& further_inputs) {
  const std::string out = absl::GetFlag(FLAGS_out);
  std::vector<std::string> patterns = absl::GetFlag(FLAGS_input);
  patterns.insert(patterns.end(), further_inputs.begin(), further_inputs.end());
  for (std::string& pattern : patterns) {
    if (pattern != kStandardInput) pattern = UserPath(pattern);
  }
  if (patterns.empty() || out.empty()) {
    return absl::InvalidArgumentError(
        "--input and --out are required: prepare_data --input='corpus/*.txt' "
        "--out=corpus.tokens");
  }
  PrepareOptions options;
  options.check_stop = StopCheck();
  RETURN_IF_ERROR(SetTokenizer(&options));
  RETURN_IF_ERROR(SetFormat(&options));
  options.vocab_size = absl::GetFlag(FLAGS_vocab_size);
  options.validation_fraction = absl::GetFlag(FLAGS_validation_fraction);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.separator = absl::GetFlag(FLAGS_separator);
  if (absl::GetFlag(FLAGS_skip_invalid)) {
    options.invalid_text = InvalidText::kSkip;
  }
  options.threads = absl::GetFlag(FLAGS_threads);
  options.progress = ConsoleProgress();
  ASSIGN_OR_RETURN(const std::vector<std::string> files, ExpandGlobs(patterns));
  ASSIGN_OR_RETURN(const Manifest manifest,
                   PrepareText(files, UserPath(out), options));
  PrintSummary(out, manifest);
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  // With an unquoted `--input *.txt`, the shell passes all files except the
  // first as separate arguments.
  return tessera::RunProgramWithArguments(
      argc, argv,
      {.usage = "converts text to tokens: prepare_data --input='corpus/*.txt' "
                "--out=corpus.tokens",
       .version = absl::StrCat("tessera ", tessera::kTesseraVersion)},
      tessera::Run);
}
