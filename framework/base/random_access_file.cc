#include "framework/base/random_access_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "framework/base/check.h"
#include "framework/base/system_error.h"

namespace tessera {
namespace {

// Raises this process's limit on open files to its hard limit; false if it is
// already there. The default soft limit, 1024, exists for programs that use
// select(), which this one does not.
bool RaiseLimitOfOpenFiles() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  if (limit.rlim_cur >= limit.rlim_max) return false;
  limit.rlim_cur = limit.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

FileDescriptor OpenForReading(const std::string& path) {
  // With O_NONBLOCK, opening a pipe does not wait for its writer. It has no
  // effect on a regular file.
  return FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

}  // namespace

absl::StatusOr<RandomAccessFile> RandomAccessFile::Open(
    const std::string& path) {
  FileDescriptor descriptor = OpenForReading(path);
  if (!descriptor.is_open() && errno == EMFILE) {
    if (!RaiseLimitOfOpenFiles()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "cannot open ", path, ": this process has reached its limit on open ",
          "files; raise it with ulimit -n, or use fewer files"));
    }
    descriptor = OpenForReading(path);
  }
  if (!descriptor.is_open()) {
    return SystemError(errno, absl::StrCat("cannot open ", path));
  }
  struct stat info;
  if (fstat(descriptor.fd(), &info) != 0) {
    return SystemError(errno, absl::StrCat("cannot read ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, S_ISDIR(info.st_mode) ? " is a folder, not a file"
                                                 : " is not a regular file"));
  }
  return RandomAccessFile(path, std::move(descriptor), info.st_size);
}

absl::Status RandomAccessFile::Read(int64_t offset, int64_t bytes,
                                    void* out) const {
  TESSERA_CHECK(offset >= 0 && bytes >= 0 && offset + bytes <= size_, path_,
                " byte ", offset);
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = pread(descriptor_.fd(), to, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::DataLossError(
          SystemError(errno,
                      absl::StrCat("cannot read ", path_, ", byte ", offset))
              .message());
    }
    if (got == 0) return Shortened(offset);
    to += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

absl::Status RandomAccessFile::Shortened(int64_t offset) const {
  struct stat now = {};
  fstat(descriptor_.fd(), &now);
  return absl::DataLossError(absl::StrCat(
      path_, ", byte ", offset, ": past the end of the file: it had ", size_,
      " bytes when it was opened and now has ", now.st_size,
      "; another program truncated it; restore the file and do not change it "
      "while it is read"));
}

}  // namespace tessera
