// Times how fast batches of token files are made, on one thread:
//
//   loader_bench [--separate] [--context_length=N] [--batch_size=N] PATH...
//
// A PATH is one of data.token_files: a prepared folder, a file of llm.c or a
// Megatron dataset. Prints a line of JSON for each. Sequences are in random
// order, as in training. Opening reads all tokens, so the files are in memory
// if they fit there.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/measure/timing.h"
#include "framework/base/file.h"
#include "framework/base/statistics.h"
#include "framework/base/status_macros.h"
#include "framework/data/data_config.h"
#include "trainers/program_flags.h"
#include "trainers/run/batch_loader.h"
#include "trainers/version.h"

ABSL_FLAG(bool, separate, false, "data.documents is SEPARATE, not JOINED");
ABSL_FLAG(int64_t, vocab_size, 65536, "model.vocab_size");
ABSL_FLAG(int64_t, context_length, 1024, "model.context_length");
ABSL_FLAG(int64_t, batch_size, 32, "sequences in a batch");
ABSL_FLAG(int, batches, 2000, "number of batches that are timed");

namespace tessera {
namespace {

absl::Status Time(const std::string& path) {
  DataConfig config;
  config.mutable_token_files()->add_train(path);
  const bool separate = absl::GetFlag(FLAGS_separate);
  if (separate) config.set_documents(DataConfig::SEPARATE);
  const int64_t context = absl::GetFlag(FLAGS_context_length);
  const int64_t batch_size = absl::GetFlag(FLAGS_batch_size);
  ASSIGN_OR_RETURN(
      const Dataset dataset,
      CreateDataset(config, {.context_length = context,
                             .vocab_size = absl::GetFlag(FLAGS_vocab_size)}));
  const BatchLoader loader(dataset.train.get(), {.global_batch = batch_size},
                           /*micro_batches=*/1, c10::Device(c10::kCPU));
  int64_t sequence = 0;
  const auto load = [&] {
    sequence += batch_size;
    return loader.Load(sequence - batch_size).status();
  };
  ASSIGN_OR_RETURN(
      Times times,
      TimeCalls(load, c10::kCPU,
                {.warmup = 0,
                 .iterations = std::max(1, absl::GetFlag(FLAGS_batches))}));
  std::vector<double>& ms = times.ms;
  absl::c_sort(ms);
  const double median_ms = *Median(ms);
  absl::PrintF(
      "{\"path\": \"%s\", \"tokens\": %d, \"documents\": \"%s\", "
      "\"context_length\": %d, \"batch_size\": %d, \"batches\": %d, "
      "\"median_us\": %.1f, \"p99_us\": %.1f, \"mtokens_per_s\": %.1f}\n",
      path, dataset.train->tokens(), separate ? "SEPARATE" : "JOINED", context,
      batch_size, ms.size(), 1e3 * median_ms, 1e3 * ms[ms.size() * 99 / 100],
      1e-3 * context * batch_size / median_ms);
  return absl::OkStatus();
}

absl::Status Run(const std::vector<std::string>& paths) {
  if (paths.empty()) {
    return absl::InvalidArgumentError(
        "token files are required: loader_bench prepared_folder tokens.bin");
  }
  for (const std::string& path : paths) RETURN_IF_ERROR(Time(UserPath(path)));
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgramWithArguments(
      argc, argv,
      {.usage = "times how fast batches of token files are made: loader_bench "
                "PATH...",
       .version = absl::StrCat("tessera ", tessera::kTesseraVersion)},
      tessera::Run);
}
