#include "framework/checkpoint/file_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<FileMapping>> FileMapping::Open(
    const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  }
  const absl::Cleanup closer = [descriptor] { close(descriptor); };
  struct stat info;
  if (fstat(descriptor, &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a file"));
  }
  if (info.st_size == 0) return absl::WrapUnique(new FileMapping(nullptr, 0));
  void* address =
      mmap(nullptr, info.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (address == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path));
  }
  madvise(address, info.st_size, MADV_SEQUENTIAL);
  return absl::WrapUnique(new FileMapping(address, info.st_size));
}

FileMapping::~FileMapping() {
  if (address_ != nullptr) munmap(address_, size_);
}

}  // namespace tessera
