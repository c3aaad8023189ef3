#ifndef FRAMEWORK_DATA_READ_MALFORMED_FILE_H_
#define FRAMEWORK_DATA_READ_MALFORMED_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera {

// InvalidArgument: the file `path` breaks its format at byte `offset`.
inline absl::Status MalformedFile(const std::string& path, int64_t offset,
                                  absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ", byte ", offset, ": ", what));
}

}  // namespace tessera

#endif  // FRAMEWORK_DATA_READ_MALFORMED_FILE_H_
