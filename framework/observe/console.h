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
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "framework/observe/run_description.h"
#include "framework/observe/run_observer.h"
#include "framework/observe/step_record.h"

namespace tessera {

// All of these end with a newline, except FormatProgress(), and fit into 80
// columns; only a path may be longer.
std::string FormatRunDescription(const RunDescription& run);
// The columns' names, and a line of them: as wide for any usual value, so that
// lines stand below each other. Unknown values read "n/a".
std::string FormatStepHeader();
std::string FormatStep(const StepRecord& record);
std::string FormatEval(const EvalRecord& record);
std::string FormatSavedBytes(const SavedBytesRecord& record);

struct ProgressState {
  int64_t first_step = 0;  // where this process started
  int64_t step = 0;        // done
  int64_t steps = 0;       // of the whole run
  absl::Duration elapsed;  // since first_step
  // Loss of the last logged step; reading it more often would make the host
  // wait for the device.
  std::optional<double> loss;
};
// "[######>           ]  32%  320/1000  4m10s left  loss 3.2500", `width`
// columns for the bar only; "? left" before the first step is done.
std::string FormatProgress(const ProgressState& state, int width);

// Prints a run: step lines to `out` and, below them, a bar to `terminal`. A run
// does not need its console: when `out` cannot be written, a warning says so
// once (FlushConsole()).
class Console : public RunObserver {
 public:
  using Clock = std::function<absl::Time()>;

  // `terminal` null: no bar. Both outlive the console.
  Console(std::FILE* out, std::FILE* terminal, Clock clock = absl::Now)
      : out_(out), bar_(terminal), clock_(std::move(clock)) {}
  // Ends the bar's line.
  ~Console() override;
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  absl::Status OnTrainStart(const RunDescription& run) override;
  // Cheap: redraws the bar at most ten times a second.
  absl::Status OnStepEnd(int64_t step) override;
  // Prints the columns' names before the first and every 50th line.
  absl::Status OnStepLogged(const StepRecord& record) override;
  absl::Status OnValidationEnd(const EvalRecord& record) override;
  absl::Status OnSavedBytes(const SavedBytesRecord& record) override;
  absl::Status OnSample(const SampleRecord& sample) override;

 private:
  void Print(absl::string_view text);

  std::FILE* const out_;
  std::FILE* const bar_;
  const Clock clock_;
  ProgressState progress_;
  absl::Time start_, last_drawn_ = absl::InfinitePast();
  std::string drawn_;  // the bar on the screen
  int64_t lines_ = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_CONSOLE_H_
