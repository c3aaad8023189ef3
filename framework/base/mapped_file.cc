#include "framework/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file_descriptor.h"
#include "framework/base/system_error.h"

namespace tessera {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path,
                                            ReadOrder order) {
  // With O_NONBLOCK, opening a pipe does not wait for its writer. It has no
  // effect on a regular file.
  const FileDescriptor file(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) {
    return SystemError(errno, absl::StrCat("cannot open ", path));
  }
  struct stat info;
  if (fstat(file.fd(), &info) != 0) {
    return SystemError(errno, absl::StrCat("cannot read ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, S_ISDIR(info.st_mode) ? " is a folder, not a file"
                                                 : " is not a regular file"));
  }
  if (info.st_size == 0) return MappedFile();  // mmap() rejects it
  void* data = mmap(nullptr, info.st_size, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (data == MAP_FAILED) {
    return SystemError(errno, absl::StrCat("cannot map ", path));
  }
  if (order == ReadOrder::kFrontToBack) {
    madvise(data, info.st_size, MADV_SEQUENTIAL);
  }
  return MappedFile(static_cast<const uint8_t*>(data), info.st_size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace tessera
