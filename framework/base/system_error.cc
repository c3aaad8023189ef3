#include "framework/base/system_error.h"

#include <cerrno>

namespace tessera {

absl::Status SystemError(int error, absl::string_view message) {
  absl::Status status = absl::ErrnoToStatus(error, message);
  if (error != ENOSPC && error != EDQUOT) return status;
  return absl::FailedPreconditionError(status.message());
}

}  // namespace tessera
