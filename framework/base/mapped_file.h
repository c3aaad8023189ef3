#ifndef FRAMEWORK_BASE_MAPPED_FILE_H_
#define FRAMEWORK_BASE_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// A whole file as read-only memory. Opening is cheap, pages load when they are
// touched, and processes of one host share them. If another process truncates
// the file, reading the missing part raises SIGBUS.
class MappedFile {
 public:
  enum class ReadOrder {
    kAny,
    kFrontToBack,  // pages are read ahead and dropped after use
  };

  // Errors: as RandomAccessFile::Open(), or the system's. An empty file is a
  // valid, empty mapping.
  static absl::StatusOr<MappedFile> Open(const std::string& path,
                                         ReadOrder order = ReadOrder::kAny);

  MappedFile() = default;  // empty
  // Pointers from bytes() stay valid.
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }
  absl::string_view bytes() const {
    return {reinterpret_cast<const char*>(data_), static_cast<size_t>(size_)};
  }

 private:
  MappedFile(const uint8_t* data, int64_t size) : data_(data), size_(size) {}

  const uint8_t* data_ = nullptr;  // null for an empty file
  int64_t size_ = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_BASE_MAPPED_FILE_H_
