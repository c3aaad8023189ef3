#ifndef FRAMEWORK_CHECKPOINT_FILE_MAPPING_H_
#define FRAMEWORK_CHECKPOINT_FILE_MAPPING_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// A whole file as read-only memory that is read from front to back; pages load
// as they are touched. Another process that shortens the file meanwhile ends
// this one with SIGBUS: complete checkpoints are never written again.
class FileMapping {
 public:
  // NotFound, PermissionDenied, or InvalidArgument for what is not a file.
  static absl::StatusOr<std::unique_ptr<FileMapping>> Open(
      const std::string& path);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;

  absl::string_view bytes() const {
    return {static_cast<const char*>(address_), size_};
  }

 private:
  FileMapping(void* address, size_t size) : address_(address), size_(size) {}

  void* const address_;  // null for an empty file
  const size_t size_;
};

}  // namespace tessera

#endif  // FRAMEWORK_CHECKPOINT_FILE_MAPPING_H_
