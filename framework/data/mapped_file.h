#ifndef FRAMEWORK_DATA_MAPPED_FILE_H_
#define FRAMEWORK_DATA_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// A file's bytes, read-only, mapped into memory: opening costs nothing, and
// processes of one host share the pages.
class MappedFile {
 public:
  // An empty file is a valid, empty mapping.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

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

  const uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_MAPPED_FILE_H_
