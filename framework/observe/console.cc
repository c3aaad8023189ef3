#include "framework/observe/console.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/base/process.h"
#include "framework/base/terminal.h"
#include "framework/observe/format.h"

namespace tessera {
namespace {

constexpr int kLinesPerHeader = 50;
constexpr int kBarColumns = 24;
constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);

// Overwrites `width` columns of the current line. Uses "\r" and no escape code,
// because some terminals know no escape codes.
std::string Erase(size_t width) {
  return absl::StrCat("\r", std::string(width, ' '), "\r");
}

// Takes at most eight columns for values down to 1e-99.
std::string FormatTflops(double tflops) {
  return absl::StrFormat(tflops < 0.01 ? "%.2e" : "%.4g", tflops);
}

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
  return absl::StrFormat("%s x %s = %s, %s per rank",
                         FormatCountOf(run.batch_size, "sequence"),
                         FormatCount(run.context),
                         FormatCountOf(run.batch_size * run.context, "token"),
                         FormatCountOf(run.micro_batches, "micro-batch"));
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
      {"simulated", run.simulated},
      {"build", run.build},
      {"config", absl::StrCat("hash ", run.config_hash)},
      {"device", absl::StrCat(run.world_size, " x ", run.device)},
      {"layout", run.layout},
      {"precision", run.precision},
      {"attention", run.attention},
      {"parameters", FormatCount(run.parameters)},
      {"data", run.data},
      {"batch", Batch(run)},
      {"steps", Steps(run)},
      {"execution", run.execution},
      {"work", Work(run)},
      {"peak", Peak(run)},
      {"run folder", run.run_folder},
      {"checkpoints", run.saves},
  };
  std::string text;
  for (const auto& [label, value] : lines) {
    if (value.empty()) continue;
    absl::StrAppend(&text, LabelledLine(label, value));
  }
  return absl::StrCat(text, run.memory_table);
}

std::string FormatStepHeader() {
  return absl::StrFormat("%8s %7s %9s %8s %10s %8s %6s %8s %8s\n", "step",
                         "loss", "grad norm", "lr", "tokens/s", "TFLOP/s",
                         "MFU", "peak GiB", "ms");
}

std::string FormatStep(const StepRecord& record) {
  const std::optional<double> mfu_percent =
      record.mfu.has_value() ? std::optional<double>(*record.mfu * 100)
                             : std::nullopt;
  return absl::StrFormat(
      "%8d %7.4f %9.4g %8.2e %10s %8s %6s %8s %8.2f\n", record.step,
      record.loss, record.grad_norm, record.lr,
      FormatCount(std::llround(record.tokens_per_s)),
      FormatTflops(record.tflops), OrNotAvailable(mfu_percent, "%", 1),
      OrNotAvailable(record.peak_gib, "", 2), record.step_ms);
}

std::string FormatEval(const EvalRecord& record) {
  std::string text =
      absl::StrFormat("%8d %7.4f  %s", record.step, record.loss, record.set);
  if (record.bits_per_byte.has_value()) {
    absl::StrAppendFormat(&text, ", %.4f bits per byte", *record.bits_per_byte);
  }
  if (record.unigram_entropy.has_value()) {
    absl::StrAppendFormat(&text, " (unigram entropy %.4f)",
                          *record.unigram_entropy);
  }
  return text + "\n";
}

std::string FormatCheckpoint(const CheckpointRecord& record) {
  return absl::StrFormat(
      "%8d checkpoint: training waited %.3f s, writing took %.3f s\n",
      record.step, record.held_up_s, record.writing_s);
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
  return absl::StrFormat(
      "[%s] %3d%%  %d/%d  %s left%s", bar, static_cast<int>(share * 100),
      state.step, state.steps, left,
      state.loss.has_value() ? absl::StrFormat("  loss %.4f", *state.loss)
                             : "");
}

Console::~Console() {
  if (drawn_.empty()) return;
  std::fputs("\n", bar_);
  std::fflush(bar_);
}

absl::Status Console::OnTrainStart(const RunDescription& run) {
  progress_.first_step = run.first_step;
  progress_.step = run.first_step;
  progress_.steps = run.steps;
  start_ = clock_();
  Print(FormatRunDescription(run));
  return absl::OkStatus();
}

absl::Status Console::OnStepEnd(int64_t step) {
  const absl::Time now = clock_();
  progress_.step = step;
  progress_.elapsed = now - start_;
  if (bar_ == nullptr) return absl::OkStatus();
  const bool last = step == progress_.steps;
  if (!last && now - last_drawn_ < kRedrawInterval) return absl::OkStatus();
  last_drawn_ = now;
  const std::string erase = Erase(drawn_.size());
  drawn_ = FormatProgress(progress_, kBarColumns);
  absl::FPrintF(bar_, "%s%s", erase, drawn_);
  std::fflush(bar_);
  return absl::OkStatus();
}

absl::Status Console::OnStepLogged(const StepRecord& record) {
  if (lines_++ % kLinesPerHeader == 0) Print(FormatStepHeader());
  Print(FormatStep(record));
  // The bar shows it from its next redraw on.
  progress_.loss = record.loss;
  return absl::OkStatus();
}

absl::Status Console::OnValidationEnd(const EvalRecord& record) {
  Print(FormatEval(record));
  return absl::OkStatus();
}

absl::Status Console::OnCheckpointSaved(const CheckpointRecord& record) {
  Print(FormatCheckpoint(record));
  return absl::OkStatus();
}

absl::Status Console::OnSavedBytes(const SavedBytesRecord& record) {
  Print(FormatSavedBytes(record));
  return absl::OkStatus();
}

absl::Status Console::OnSample(const SampleRecord& sample) {
  Print(absl::StrCat("\n--- ", sample.heading, "\n", sample.text, "\n---\n"));
  return absl::OkStatus();
}

void Console::Print(absl::string_view text) {
  // The sample and the bar may go to the same terminal: erase the bar and
  // redraw it below.
  if (!drawn_.empty()) {
    absl::FPrintF(bar_, "%s", Erase(drawn_.size()));
    std::fflush(bar_);
  }
  absl::FPrintF(out_, "%s", text);
  FlushConsole(out_);
  if (!drawn_.empty()) {
    absl::FPrintF(bar_, "%s", drawn_);
    std::fflush(bar_);
  }
}

}  // namespace tessera
