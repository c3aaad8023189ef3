#include "framework/observe/console.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/observe/format.h"

namespace tessera {
namespace {

constexpr int kLinesPerHeader = 50;
constexpr int kBarWidth = 30;
constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);
// Back to the first column and erase to the end of the line (ECMA-48).
constexpr absl::string_view kEraseLine = "\r\x1b[K";

std::string OrNotAvailable(const std::optional<double>& value,
                           absl::string_view unit, int decimals) {
  if (!value.has_value()) return "n/a";
  return absl::StrFormat("%.*f%s", decimals, *value, unit);
}

std::string Work(const RunDescription& run) {
  const double tokens =
      static_cast<double>(run.batch_size) * static_cast<double>(run.context);
  return absl::StrFormat("%.4g TFLOP per step (%.4g GFLOP per token)",
                         run.flops_per_token * tokens * 1e-12,
                         run.flops_per_token * 1e-9);
}

std::string Batch(const RunDescription& run) {
  return absl::StrFormat(
      "%s sequences x %s tokens = %s tokens, %d micro-batch%s per rank",
      FormatCount(run.batch_size), FormatCount(run.context),
      FormatCount(run.batch_size * run.context), run.micro_batches,
      run.micro_batches == 1 ? "" : "es");
}

std::string Steps(const RunDescription& run) {
  if (run.first_step == 0) return FormatCount(run.steps);
  return absl::StrCat(FormatCount(run.steps), ", resumed after ",
                      FormatCount(run.first_step));
}

std::string Peak(const RunDescription& run) {
  if (!run.peak_tflops.has_value()) {
    return "not known for this device, so MFU is n/a; set observe.peak_tflops";
  }
  return absl::StrFormat("%.4g TFLOP/s (MFU is measured against it)",
                         *run.peak_tflops);
}

}  // namespace

std::string FormatRunDescription(const RunDescription& run) {
  const std::vector<std::pair<absl::string_view, std::string>> lines = {
      {"build", run.build},
      {"config", absl::StrCat("hash ", run.config_hash)},
      {"device", absl::StrCat(run.world_size, " x ", run.device)},
      {"precision", run.precision},
      {"attention", run.attention},
      {"parameters", FormatCount(run.parameters)},
      {"data", run.data},
      {"batch", Batch(run)},
      {"steps", Steps(run)},
      {"work", Work(run)},
      {"peak", Peak(run)},
      {"run folder", run.run_folder},
      {"checkpoints", run.saves},
  };
  std::string text;
  for (const auto& [label, value] : lines) {
    absl::StrAppendFormat(&text, "%-12s%s\n", label, value);
  }
  return absl::StrCat(text, run.memory_table);
}

std::string FormatStepHeader() {
  return absl::StrFormat("%8s %9s %10s %10s %11s %9s %6s %9s %10s\n", "step",
                         "loss", "grad norm", "lr", "tokens/s", "TFLOP/s",
                         "MFU", "peak GiB", "ms");
}

std::string FormatStep(const StepRecord& record) {
  const std::optional<double> mfu_percent =
      record.mfu.has_value() ? std::optional<double>(*record.mfu * 100)
                             : std::nullopt;
  return absl::StrFormat("%8d %9.4f %10.4g %10.3e %11s %9.4g %6s %9s %10.2f\n",
                         record.step, record.loss, record.grad_norm, record.lr,
                         FormatCount(std::llround(record.tokens_per_s)),
                         record.tflops, OrNotAvailable(mfu_percent, "%", 1),
                         OrNotAvailable(record.peak_gib, "", 2),
                         record.step_ms);
}

std::string FormatEval(const EvalRecord& record) {
  std::string text =
      absl::StrFormat("%8d %9.4f  validation", record.step, record.loss);
  if (record.unigram_entropy.has_value()) {
    absl::StrAppendFormat(&text, " (unigram entropy %.4f)",
                          *record.unigram_entropy);
  }
  return text + "\n";
}

std::string FormatSavedBytes(const SavedBytesRecord& record) {
  return absl::StrFormat("%8d %s saved for backward\n", record.step,
                         FormatBytes(record.bytes));
}

std::string FormatProgress(const ProgressState& state, int width) {
  const double share =
      state.steps > 0
          ? std::clamp(static_cast<double>(state.step) / state.steps, 0.0, 1.0)
          : 0.0;
  const int filled = static_cast<int>(share * width);
  std::string bar(filled, '#');
  if (filled < width) bar += '>';
  bar.resize(width, ' ');
  const int64_t done = state.step - state.first_step;
  const std::string left =
      done > 0 ? FormatElapsed(state.elapsed / done *
                               static_cast<double>(state.steps - state.step))
               : "?";
  return absl::StrFormat("[%s] %3d%%  %d/%d  %s left", bar,
                         static_cast<int>(share * 100), state.step, state.steps,
                         left);
}

bool WantsProgressBar(ObserveConfig::ProgressBar setting) {
  if (setting == ObserveConfig::AUTO) return isatty(STDERR_FILENO) == 1;
  return setting == ObserveConfig::ON;
}

Console::~Console() {
  if (drawn_.empty()) return;
  std::fputs("\n", bar_);
  std::fflush(bar_);
}

void Console::Start(const RunDescription& run, absl::Time now) {
  progress_.first_step = run.first_step;
  progress_.step = run.first_step;
  progress_.steps = run.steps;
  start_ = now;
  Print(FormatRunDescription(run));
}

void Console::Step(const StepRecord& record) {
  if (lines_++ % kLinesPerHeader == 0) Print(FormatStepHeader());
  Print(FormatStep(record));
}

void Console::Eval(const EvalRecord& record) { Print(FormatEval(record)); }

void Console::SavedBytes(const SavedBytesRecord& record) {
  Print(FormatSavedBytes(record));
}

void Console::Progress(int64_t step, absl::Time now) {
  progress_.step = step;
  progress_.elapsed = now - start_;
  if (bar_ == nullptr) return;
  const bool last = step == progress_.steps;
  if (!last && now - last_drawn_ < kRedrawInterval) return;
  last_drawn_ = now;
  drawn_ = FormatProgress(progress_, kBarWidth);
  absl::FPrintF(bar_, "%s%s", kEraseLine, drawn_);
  std::fflush(bar_);
}

void Console::Print(absl::string_view text) {
  // Both may be one terminal: the bar makes room and comes back below.
  if (!drawn_.empty()) {
    absl::FPrintF(bar_, "%s", kEraseLine);
    std::fflush(bar_);
  }
  absl::FPrintF(out_, "%s", text);
  std::fflush(out_);
  if (!drawn_.empty()) {
    absl::FPrintF(bar_, "%s", drawn_);
    std::fflush(bar_);
  }
}

}  // namespace tessera
