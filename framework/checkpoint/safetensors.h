#ifndef FRAMEWORK_CHECKPOINT_SAFETENSORS_H_
#define FRAMEWORK_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/base/mapped_file.h"
#include "framework/checkpoint/durable_file.h"
#include "framework/checkpoint/safetensors_header.h"

namespace tessera {

// A safetensors file, mapped into memory. For the format and what is rejected
// see safetensors_header.h. Errors name the file.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(
      const std::string& path);

  const std::string& path() const { return path_; }
  uint64_t size_bytes() const { return file_.bytes().size(); }
  // Sorted by offset.
  absl::Span<const TensorEntry> tensors() const { return header_.tensors; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  // The length field and the JSON, padding included.
  absl::string_view header_bytes() const;

  // Null if there is no tensor with that name.
  const TensorEntry* Find(absl::string_view name) const;
  // The tensor's bytes, valid during the file's lifetime. `entry` belongs to
  // this file. Aligned to the dtype in files of SafetensorsWriter, but not in
  // every file.
  absl::string_view Bytes(const TensorEntry& entry) const;

 private:
  SafetensorsFile() = default;

  std::string path_;
  MappedFile file_;
  SafetensorsHeader header_;
  uint64_t data_start_ = 0;
  absl::flat_hash_map<std::string, int64_t> index_;  // into header_.tensors
};

// Writes a safetensors file from tensors that are declared first and whose
// bytes arrive in pieces, so that only one piece of a model is in host memory
// at a time.
class SafetensorsWriter {
 public:
  // `tensors` are in the order in which their bytes arrive. In the file, wider
  // dtypes come first, which aligns every tensor to its dtype.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, std::vector<TensorSpec> tensors,
      const SafetensorsMetadata& metadata = {}, WritePointHook hook = nullptr);

  // Writes the next bytes. A piece may end inside a tensor or span several.
  // OutOfRange after the last declared byte.
  absl::Status Write(absl::string_view bytes);
  // Makes the file durable. FailedPrecondition if declared bytes are missing;
  // names the tensor.
  absl::Status Finish();

  // After Finish(): XXH3-64 of each tensor, in the declared order, and of
  // SafetensorsFile::header_bytes().
  absl::Span<const TensorSpec> tensors() const { return specs_; }
  absl::Span<const uint64_t> checksums() const { return checksums_; }
  uint64_t header_checksum() const { return header_checksum_; }
  uint64_t size_bytes() const { return data_start_ + data_bytes_; }
  bool finished() const { return finished_; }

  ~SafetensorsWriter();

 private:
  struct Hasher;
  SafetensorsWriter();

  // Assigns the tensors' offsets; returns everything before the data.
  absl::StatusOr<std::string> LayOut(const SafetensorsMetadata& metadata);
  // Advances past tensors that have all their bytes.
  void CloseFullTensors();

  std::unique_ptr<DurableFile> file_;
  std::vector<TensorSpec> specs_;
  std::vector<uint64_t> begins_, sizes_;  // of specs_; begins_ in the data
  std::vector<uint64_t> checksums_;
  std::unique_ptr<Hasher> hasher_;  // of specs_[checksums_.size()]
  uint64_t position_ = 0;           // within that tensor
  uint64_t data_start_ = 0;
  uint64_t data_bytes_ = 0;
  uint64_t header_checksum_ = 0;
  bool finished_ = false;
};

}  // namespace tessera

#endif  // FRAMEWORK_CHECKPOINT_SAFETENSORS_H_
