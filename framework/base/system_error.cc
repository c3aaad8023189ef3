#include "framework/base/system_error.h"

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace tessera {

bool IsFullDisk(int error) { return error == ENOSPC || error == EDQUOT; }

absl::Status SystemError(int error, absl::string_view message) {
  absl::Status status = absl::ErrnoToStatus(error, message);
  if (error == EFBIG) {
    return absl::FailedPreconditionError(absl::StrCat(
        status.message(),
        "; raise the limit on file sizes of the shell (ulimit -f), or use "
        "another file system"));
  }
  const bool is_fixable =
      IsFullDisk(error) || error == EMFILE || error == ENFILE || error == ELOOP;
  return is_fixable ? absl::FailedPreconditionError(status.message()) : status;
}

}  // namespace tessera
