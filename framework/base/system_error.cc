#include "framework/base/system_error.h"

#include <cerrno>

namespace tessera {

bool IsFullDisk(int error) { return error == ENOSPC || error == EDQUOT; }

absl::Status SystemError(int error, absl::string_view message) {
  absl::Status status = absl::ErrnoToStatus(error, message);
  const bool is_fixable =
      IsFullDisk(error) || error == EMFILE || error == ENFILE || error == ELOOP;
  return is_fixable ? absl::FailedPreconditionError(status.message()) : status;
}

}  // namespace tessera
