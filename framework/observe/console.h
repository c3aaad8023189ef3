#ifndef FRAMEWORK_OBSERVE_CONSOLE_H_
#define FRAMEWORK_OBSERVE_CONSOLE_H_

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "framework/observe/step_record.h"

namespace tessera {

// What a run is, for the block that is printed before its first step.
struct RunDescription {
  std::string build;        // "tessera 1.0.0, LibTorch 2.11.0, CUDA 13.0"
  std::string config_hash;  // of the resolved config: "9f86d081884c7d65"
  std::string device;       // "NVIDIA H200"
  int world_size = 1;
  std::string precision;  // "BF16"
  std::string attention;  // the backend and who chose it
  std::string data;       // "default_text, 18,203,112 tokens"
  std::string run_folder;
  std::string saves;  // "every 15 minutes and after the last step"
  int64_t parameters = 0;
  int64_t batch_size = 0;  // sequences per step, over all ranks
  int64_t context = 0;
  int64_t micro_batches = 1;
  int64_t first_step = 0;  // > 0 when resumed
  int64_t steps = 0;
  double flops_per_token = 0;
  std::optional<double> peak_tflops;
  std::string memory_table;  // FormatMemoryTable(); may be empty
};

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
class Console {
 public:
  // `terminal` null: no bar. Both outlive the console.
  Console(std::FILE* out, std::FILE* terminal) : out_(out), bar_(terminal) {}
  // Ends the bar's line.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void Start(const RunDescription& run, absl::Time now);
  // Prints the columns' names before the first and every 50th line.
  void Step(const StepRecord& record);
  void Eval(const EvalRecord& record);
  void SavedBytes(const SavedBytesRecord& record);
  // What the model made, under a heading such as "sample".
  void Sample(absl::string_view heading, absl::string_view text);
  // `step` steps are done. Cheap: redraws the bar at most ten times a second.
  void Progress(int64_t step, absl::Time now);

 private:
  void Print(absl::string_view text);

  std::FILE* const out_;
  std::FILE* const bar_;
  ProgressState progress_;
  absl::Time start_, last_drawn_ = absl::InfinitePast();
  std::string drawn_;  // the bar on the screen
  int64_t lines_ = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_CONSOLE_H_
