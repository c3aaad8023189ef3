#ifndef FRAMEWORK_BASE_LOG_H_
#define FRAMEWORK_BASE_LOG_H_

#include "absl/strings/string_view.h"

namespace tessera {

// Write a line to stderr for the person who watches the run. Each call is one
// write(), so lines of processes that share a terminal do not mix.
void LogInfo(absl::string_view message);
void LogWarning(absl::string_view message);  // "warning: ..."
void LogError(absl::string_view message);    // "error: ..."

// Precedes every later line, e.g. "[rank 1] ". Empty by default.
void SetLogPrefix(absl::string_view prefix);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_LOG_H_
