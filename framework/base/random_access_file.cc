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

int OpenForReading(const std::string& path) {
  // With O_NONBLOCK, opening a pipe does not wait for its writer. It has no
  // effect on a regular file.
  return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

}  // namespace

absl::StatusOr<RandomAccessFile> RandomAccessFile::Open(
    const std::string& path) {
  int descriptor = OpenForReading(path);
  if (descriptor < 0 && errno == EMFILE) {
    if (!RaiseLimitOfOpenFiles()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "cannot open ", path, ": this process has reached its limit on open ",
          "files; raise it with ulimit -n, or use fewer files"));
    }
    descriptor = OpenForReading(path);
  }
  if (descriptor < 0) {
    return SystemError(errno, absl::StrCat("cannot open ", path));
  }
  RandomAccessFile file(path, descriptor, 0);  // closes `descriptor`
  struct stat info;
  if (fstat(descriptor, &info) != 0) {
    return SystemError(errno, absl::StrCat("cannot read ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a file"));
  }
  file.size_ = info.st_size;
  return file;
}

RandomAccessFile::RandomAccessFile(std::string path, int descriptor,
                                   int64_t size)
    : path_(std::move(path)), descriptor_(descriptor), size_(size) {}

RandomAccessFile::RandomAccessFile(RandomAccessFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_) {}

RandomAccessFile& RandomAccessFile::operator=(
    RandomAccessFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

RandomAccessFile::~RandomAccessFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status RandomAccessFile::Read(int64_t offset, int64_t bytes,
                                    void* out) const {
  TESSERA_CHECK(offset >= 0 && bytes >= 0 && offset + bytes <= size_, path_,
                " byte ", offset);
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = pread(descriptor_, to, bytes, offset);
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
  fstat(descriptor_, &now);
  return absl::DataLossError(absl::StrCat(
      path_, ", byte ", offset, ": past the end of the file: it had ", size_,
      " bytes when it was opened and now has ", now.st_size,
      "; another program truncated it; restore the file and do not change it "
      "while it is read"));
}

}  // namespace tessera
