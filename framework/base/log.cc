#include "framework/base/log.h"

#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/base/attributes.h"
#include "absl/base/const_init.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"

namespace tessera {
namespace {

ABSL_CONST_INIT absl::Mutex prefix_mutex(absl::kConstInit);

std::string& Prefix() ABSL_EXCLUSIVE_LOCKS_REQUIRED(prefix_mutex) {
  // Never destroyed, because threads may log while the process exits.
  static std::string* const prefix = new std::string();
  return *prefix;
}

void Write(absl::string_view severity, absl::string_view message) {
  absl::ConsumeSuffix(&message, "\n");  // it would begin an empty line
  std::string lines;
  {
    const absl::MutexLock lock(&prefix_mutex);
    for (absl::string_view line : absl::StrSplit(message, '\n')) {
      absl::StrAppend(&lines, Prefix(), severity, line, "\n");
    }
  }
  absl::string_view rest = lines;
  while (!rest.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    // There is nowhere to report that stderr is closed.
    if (written < 0) return;
    rest.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

void LogInfo(absl::string_view message) { Write("", message); }
void LogWarning(absl::string_view message) { Write("warning: ", message); }
void LogError(absl::string_view message) { Write("error: ", message); }

void SetLogPrefix(absl::string_view prefix) {
  const absl::MutexLock lock(&prefix_mutex);
  Prefix() = std::string(prefix);
}

}  // namespace tessera
