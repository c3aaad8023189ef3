#ifndef FRAMEWORK_BASE_RANDOM_ACCESS_FILE_H_
#define FRAMEWORK_BASE_RANDOM_ACCESS_FILE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "framework/base/file_descriptor.h"

namespace tessera {

// A file that stays open and is read at any offset with pread(). If another
// program truncates it, Read() returns an error, whereas mapped memory
// (MappedFile) would raise a signal. Thread-safe.
class RandomAccessFile {
 public:
  // NotFound, PermissionDenied, or InvalidArgument if `path` is not a regular
  // file. Raises this process's limit on open files when it is reached;
  // FailedPrecondition if it cannot be raised.
  static absl::StatusOr<RandomAccessFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  int fd() const { return descriptor_.fd(); }
  int64_t size() const { return size_; }  // when it was opened

  // Copies bytes [offset, offset + bytes), which lie within size(), to `out`.
  // DataLoss with path and byte if they cannot be read or no longer exist.
  absl::Status Read(int64_t offset, int64_t bytes, void* out) const;

 private:
  RandomAccessFile(std::string path, FileDescriptor descriptor, int64_t size)
      : path_(std::move(path)),
        descriptor_(std::move(descriptor)),
        size_(size) {}
  absl::Status Shortened(int64_t offset) const;

  std::string path_;
  FileDescriptor descriptor_;
  int64_t size_;
};

}  // namespace tessera

#endif  // FRAMEWORK_BASE_RANDOM_ACCESS_FILE_H_
