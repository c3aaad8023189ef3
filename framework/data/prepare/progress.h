#ifndef FRAMEWORK_DATA_PREPARE_PROGRESS_H_
#define FRAMEWORK_DATA_PREPARE_PROGRESS_H_

#include <functional>

#include "absl/strings/string_view.h"

namespace tessera {

// Progress of a long preparation.
struct Progress {
  absl::string_view phase;  // "encoding 18.2 MB"
  double fraction = 0;      // done, in [0, 1]; 1 ends the phase
};

// Receives the progress, from one thread at a time. May be empty.
using ProgressSink = std::function<void(const Progress&)>;

inline void Report(const ProgressSink& sink, absl::string_view phase,
                   double fraction) {
  if (sink) sink({phase, fraction});
}

// Reports to stderr: on a terminal as a bar that is redrawn, else as one line
// when a phase begins and one, with its duration, when it ends.
ProgressSink ConsoleProgress();

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_PROGRESS_H_
