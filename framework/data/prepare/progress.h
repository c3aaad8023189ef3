#ifndef FRAMEWORK_DATA_PREPARE_PROGRESS_H_
#define FRAMEWORK_DATA_PREPARE_PROGRESS_H_

#include <functional>

#include "absl/strings/string_view.h"

namespace tessera {

// How far a long preparation is.
struct Progress {
  absl::string_view phase;  // "encoding 18.2 MB"
  double fraction = 0;      // of the phase, in [0, 1]; 1 ends it
};

// Called from one thread at a time. Empty: nobody listens.
using ProgressSink = std::function<void(const Progress&)>;

inline void Report(const ProgressSink& sink, absl::string_view phase,
                   double fraction) {
  if (sink) sink({phase, fraction});
}

// Writes to stderr: a bar that redraws itself on a terminal, else one line when
// a phase begins and one, with its seconds, when it ends.
ProgressSink ConsoleProgress();

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_PROGRESS_H_
