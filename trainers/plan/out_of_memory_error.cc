#include "trainers/plan/out_of_memory_error.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/base/terminal.h"
#include "framework/observe/format.h"

namespace tessera {
namespace {

// Columns that remain of 80 after "error: ".
constexpr int kErrorColumns = 73;

// The smallest number of micro-batches above the current one that divides a
// rank's share of the batch; the current one if there is none.
int64_t MoreMicroBatches(const MemoryChoices& choices) {
  const int64_t share = choices.batch_size / choices.layout.data_ranks();
  for (int64_t n = choices.micro_batches + 1; n <= share; ++n) {
    if (share % n == 0) return n;
  }
  return choices.micro_batches;
}

}  // namespace

std::vector<std::string> MemoryAdvice(const MemoryReport& report,
                                      const MemoryChoices& choices) {
  std::vector<std::string> advice;
  if (!choices.leaner_attention.empty()) {
    advice.push_back(absl::StrCat(
        "attention { backend: ", choices.leaner_attention,
        " }: ", choices.attention,
        " holds every score of every head, context x context of them"));
  }
  if (const int64_t more = MoreMicroBatches(choices);
      more > choices.micro_batches) {
    advice.push_back(absl::StrFormat(
        "training { micro_batches: %d }: %s at a time per rank instead of %d, "
        "the same step",
        more,
        FormatCountOf(choices.batch_size / choices.layout.data_ranks() / more,
                      "sequence"),
        choices.batch_size / choices.layout.data_ranks() /
            choices.micro_batches));
  }
  if (choices.layout.data_ranks() > 1 && choices.layout.zero == 0) {
    advice.push_back(absl::StrFormat(
        "layout { zero: 1 }: each rank has 1/%d of the optimizer's state, the "
        "same step",
        choices.layout.data_ranks()));
  }
  if (choices.recompute != "BLOCK") {
    advice.push_back(
        "recompute { policy: BLOCK }: keeps one activation per block, for "
        "about a third more computation");
  }
  if (choices.precision == "FP32" || choices.precision == "TF32") {
    advice.push_back(
        "precision { mode: BF16 }: activations and gradients of half the size");
  }
  // Weights, gradients and moments, which do not shrink with the batch.
  const int64_t states = report.parameters + report.shadow + report.optimizer;
  if (choices.precision != "BF16_PURE" && 2 * states > report.total()) {
    advice.push_back(
        "precision { mode: BF16_PURE }: weights and moments of 2 bytes each, "
        "at a cost in accuracy");
  }
  advice.push_back(absl::StrFormat(
      "a smaller model.context_length (now %d) or training.batch_size (now "
      "%d): a different run",
      choices.context, choices.batch_size));
  return advice;
}

absl::Status OutOfMemoryError(absl::string_view request,
                              const MemoryReport& report,
                              const std::vector<std::string>& advice) {
  std::string message =
      absl::StrCat("out of memory: ", request, "\n", FormatMemoryTable(report),
                   "what would help, the cheapest first:\n");
  for (const std::string& line : advice) {
    absl::StrAppend(&message, Fold(absl::StrCat("  ", line), kErrorColumns, 4),
                    "\n");
  }
  return absl::ResourceExhaustedError(message);
}

}  // namespace tessera
