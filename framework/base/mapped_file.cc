#include "framework/base/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "framework/base/random_access_file.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"

namespace tessera {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path,
                                            ReadOrder order) {
  ASSIGN_OR_RETURN(const RandomAccessFile file, RandomAccessFile::Open(path));
  if (file.size() == 0) return MappedFile();  // mmap() rejects it
  void* data = mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, file.fd(), 0);
  if (data == MAP_FAILED) {
    return SystemError(errno, absl::StrCat("cannot map ", path));
  }
  if (order == ReadOrder::kFrontToBack) {
    madvise(data, file.size(), MADV_SEQUENTIAL);
  }
  return MappedFile(static_cast<const uint8_t*>(data), file.size());
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
