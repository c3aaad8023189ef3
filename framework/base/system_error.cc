#include "framework/base/system_error.h"

#include <cerrno>

namespace tessera {

bool IsFullDisk(int error) { return error == ENOSPC || error == EDQUOT; }

absl::Status SystemError(int error, absl::string_view message) {
  absl::Status status = absl::ErrnoToStatus(error, message);
  if (!IsFullDisk(error)) return status;
  return absl::FailedPreconditionError(status.message());
}

}  // namespace tessera
