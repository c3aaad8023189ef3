#ifndef FRAMEWORK_BASE_CHECK_H_
#define FRAMEWORK_BASE_CHECK_H_

#include "absl/base/optimization.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Prints `file:line: message` to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line,
                              absl::string_view message);

}  // namespace tessera

// For bugs of this code only. Anything that a user, file, shape, device or peer
// can cause is an absl::Status. Further arguments are appended to the condition
// with StrCat().
#define TESSERA_CHECK(condition, ...)                                    \
  do {                                                                   \
    if (ABSL_PREDICT_FALSE(!(condition)))                                \
      ::tessera::CheckFailed(                                            \
          __FILE__, __LINE__,                                            \
          absl::StrCat("CHECK failed: " #condition " ", ##__VA_ARGS__)); \
  } while (false)

#endif  // FRAMEWORK_BASE_CHECK_H_
