#ifndef FRAMEWORK_OBSERVE_FORMAT_H_
#define FRAMEWORK_OBSERVE_FORMAT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tessera {

inline constexpr double kMebibyte = 1 << 20, kGibibyte = 1 << 30;

// Formats numbers for people.

// "3,407,000,000".
std::string FormatCount(int64_t count);
// "1 sequence", "2,048 tokens", "2 micro-batches". `one` is the singular noun.
std::string FormatCountOf(int64_t count, absl::string_view one);

// {"MiB", 1048576}.
struct ByteUnit {
  const char* name;
  double bytes;
};
// The largest unit, up to TiB, that is no more than `bytes`; else the byte.
ByteUnit ByteUnitFor(double bytes);
// "512 B", "1.50 KiB", "12.69 GiB".
std::string FormatBytes(int64_t bytes);
// "45s", "12m05s", "3h07m", "2d04h"; "0s" for a negative duration.
std::string FormatElapsed(absl::Duration duration);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_FORMAT_H_
