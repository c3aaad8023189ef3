#ifndef FRAMEWORK_BASE_LOG_H_
#define FRAMEWORK_BASE_LOG_H_

#include "absl/strings/string_view.h"

namespace tessera {

// What a person watching the run should read, on stderr. Each call is one
// write, so lines of processes that share a terminal do not mix.
void LogInfo(absl::string_view message);
void LogWarning(absl::string_view message);  // "warning: ..."
void LogError(absl::string_view message);    // "error: ..."

// Stands in front of every later line, e.g. "[rank 1] ". Empty at first.
void SetLogPrefix(absl::string_view prefix);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_LOG_H_
