#ifndef FRAMEWORK_BASE_RANDOM_ACCESS_FILE_H_
#define FRAMEWORK_BASE_RANDOM_ACCESS_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// A file that stays open and is read at any place with pread(). Unlike memory
// that is mapped (MappedFile), a file that another program shortens meanwhile
// gives an error, not a signal. Thread-safe.
class RandomAccessFile {
 public:
  // NotFound, PermissionDenied, or InvalidArgument for what is not a file.
  // Raises this process's limit of open files where that is in the way and may
  // be raised; else FailedPrecondition.
  static absl::StatusOr<RandomAccessFile> Open(const std::string& path);

  RandomAccessFile(RandomAccessFile&& other) noexcept;
  RandomAccessFile& operator=(RandomAccessFile&& other) noexcept;
  ~RandomAccessFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // when it was opened

  // Copies bytes [offset, offset + bytes), which lie within size(), to `out`.
  // DataLoss with path and byte where they cannot be read or are gone.
  absl::Status Read(int64_t offset, int64_t bytes, void* out) const;

 private:
  RandomAccessFile(std::string path, int descriptor, int64_t size);
  absl::Status Shortened(int64_t offset) const;

  std::string path_;
  int descriptor_;  // negative after a move
  int64_t size_;
};

}  // namespace tessera

#endif  // FRAMEWORK_BASE_RANDOM_ACCESS_FILE_H_
