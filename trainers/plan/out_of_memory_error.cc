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

std::vector<std::string> MemoryAdvice(
    const MemoryReport& report, const MemoryChoices& choices,
    absl::FunctionRef<bool(const std::string& fields)> helps) {
  std::vector<std::string> advice;
  const auto add = [&](const std::string& fields, absl::string_view why) {
    if (helps(fields)) advice.push_back(absl::StrCat(fields, ": ", why));
  };
  const int64_t ranks = choices.layout.data_ranks();
  if (!choices.leaner_attention.empty()) {
    add(absl::StrCat("attention { backend: ", choices.leaner_attention, " }"),
        absl::StrCat(
            choices.attention,
            " holds every score of every head, context x context of them"));
  }
  if (const int64_t more = MoreMicroBatches(choices);
      more > choices.micro_batches) {
    add(absl::StrCat("training { micro_batches: ", more, " }"),
        absl::StrCat(
            FormatCountOf(choices.batch_size / ranks / more, "sequence"),
            " at a time per rank instead of ",
            choices.batch_size / ranks / choices.micro_batches,
            ", the same step"));
  }
  if (ranks > 1 && choices.layout.zero == 0) {
    add("layout { zero: 1 }",
        absl::StrCat("each rank has 1/", ranks,
                     " of the optimizer's state, the same step"));
  }
  if (choices.recompute != "BLOCK") {
    add("recompute { policy: BLOCK }",
        "keeps one activation per block, for about a third more computation");
  }
  if (choices.precision == "FP32" || choices.precision == "TF32") {
    add("precision { mode: BF16 }",
        "activations and gradients of half the size");
  }
  // Weights, gradients and moments, which do not shrink with the batch.
  const int64_t states = report.parameters + report.shadow + report.optimizer;
  if (choices.precision != "BF16_PURE" && 2 * states > report.total()) {
    add("precision { mode: BF16_PURE }",
        "weights and moments of 2 bytes each, at a cost in accuracy");
  }
  advice.push_back(absl::StrCat("a smaller model.context_length (now ",
                                choices.context,
                                ") or training.batch_size (now ",
                                choices.batch_size, "): a different run"));
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
