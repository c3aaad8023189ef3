#ifndef FRAMEWORK_OBSERVE_CONSOLE_H_
#define FRAMEWORK_OBSERVE_CONSOLE_H_

#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "framework/base/monotonic_clock.h"
#include "framework/observe/run_description.h"
#include "framework/observe/run_observer.h"
#include "framework/observe/step_record.h"

namespace tessera {

// The functions below return text that ends with a newline (except
// FormatProgress()) and fits into 80 columns (except long paths).
std::string FormatRunDescription(const RunDescription& run);
// The header and one row of the step table. Columns line up for all usual
// values. Unknown values read "n/a".
std::string FormatStepHeader();
std::string FormatStep(const StepRecord& record);
std::string FormatEval(const EvalRecord& record);
std::string FormatCheckpoint(const CheckpointRecord& record);
std::string FormatSavedBytes(const SavedBytesRecord& record);

struct ProgressState {
  int64_t first_step = 0;  // where this process started
  int64_t step = 0;        // done
  int64_t steps = 0;       // of the whole run
  absl::Duration elapsed;  // since first_step
  // Loss of the last logged step. It is not read more often, because reading it
  // makes the host wait for the device.
  std::optional<double> loss;
};
// "[######>           ]  32%  320/1000  4m10s left  loss 3.2500". The bar is
// `width` columns wide. The time reads "? left" until the first step is done.
std::string FormatProgress(const ProgressState& state, int width);

// Prints step lines to `out` and, below them, a progress bar to `terminal`. If
// `out` cannot be written, the console warns once (FlushConsole()) and the run
// continues.
class Console : public RunObserver {
 public:
  using Clock = std::function<absl::Time()>;

  // No bar if `terminal` is null. Both streams outlive the console.
  Console(std::FILE* out, std::FILE* terminal, Clock clock = MonotonicNow)
      : out_(out), bar_(terminal), clock_(std::move(clock)) {}
  // Ends the bar's line.
  ~Console() override;
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  absl::Status OnTrainStart(const RunDescription& run) override;
  // Redraws the bar at most ten times a second.
  absl::Status OnStepEnd(int64_t step) override;
  // Prints the header before the first and every 50th line.
  absl::Status OnStepLogged(const StepRecord& record) override;
  absl::Status OnValidationEnd(const EvalRecord& record) override;
  absl::Status OnCheckpointSaved(const CheckpointRecord& record) override;
  absl::Status OnSavedBytes(const SavedBytesRecord& record) override;
  absl::Status OnSample(const SampleRecord& sample) override;

 private:
  void Print(absl::string_view text);

  std::FILE* const out_;
  std::FILE* const bar_;
  const Clock clock_;
  ProgressState progress_;
  absl::Time start_, last_drawn_ = absl::InfinitePast();
  std::string drawn_;  // the bar as it is on the screen
  int64_t lines_ = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_CONSOLE_H_
