#ifndef FRAMEWORK_CHECKPOINT_TENSOR_FILES_H_
#define FRAMEWORK_CHECKPOINT_TENSOR_FILES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/checkpoint/safetensors.h"

namespace tessera {

// Tensors in one safetensors file or, if they are large, in several with an
// index, named and written as Hugging Face's libraries do:
//
//   model.safetensors
//
//   model-00001-of-00002.safetensors, model-00002-of-00002.safetensors
//   model.safetensors.index.json
//     {"metadata": {"total_size": BYTES}, "weight_map": {TENSOR: FILE}}

// The most bytes of tensors in a file. Small enough that eight ranks get about
// as much to write, and large enough for few files.
inline constexpr uint64_t kMaxTensorFileBytes = uint64_t{2} << 30;

// A safetensors file and its tensors.
struct TensorFile {
  std::string name;
  std::vector<TensorSpec> tensors;
  uint64_t bytes = 0;  // of the tensors
};

// Divides tensors, sorted by name, into files of at most `max_bytes` each; a
// larger tensor gets a file of its own. The result depends on nothing else, so
// the same state always has the same files. `name` is that of a single file.
absl::StatusOr<std::vector<TensorFile>> DivideIntoFiles(
    absl::string_view name, std::vector<TensorSpec> tensors,
    uint64_t max_bytes = kMaxTensorFileBytes);

// "model.safetensors.index.json".
std::string IndexName(absl::string_view name);
// The content of the index of several files.
std::string IndexOf(absl::Span<const TensorFile> files);
// The file of each tensor in an index. DataLoss, naming `path`, if `text` is
// not an index.
absl::StatusOr<std::map<std::string, std::string>> ParseIndex(
    absl::string_view path, absl::string_view text);

// Shares files of these sizes among `count` parties, about as many bytes each;
// returns the party of each file. Depends on nothing else.
std::vector<int> ShareFiles(absl::Span<const uint64_t> bytes, int count);

// A tensor of a file. Its views are valid during the file's lifetime.
struct StoredTensor {
  TensorSpec spec;
  absl::string_view bytes;  // SafetensorsFile::Bytes()
  absl::string_view path;   // of the file
};

// The tensors of one file, or of the files of an index. The files must outlive
// it.
class StoredTensors {
 public:
  explicit StoredTensors(const SafetensorsFile& file);
  // `weight_map` is from the index at `path`, and `files` has the files that it
  // names. DataLoss, naming file and tensor, if the index does not match them.
  static absl::StatusOr<StoredTensors> FromIndex(
      std::string path, const std::map<std::string, std::string>& weight_map,
      const std::map<std::string, const SafetensorsFile*>& files);

  // The file or, if there are several, the index.
  const std::string& path() const { return path_; }
  int64_t num_tensors() const { return static_cast<int64_t>(index_.size()); }
  // Null if there is no tensor with that name.
  const StoredTensor* Find(absl::string_view name) const;

  // The same tensors under other names: `names` has the new name of each.
  // Leaves out tensors that are `redundant`. InvalidArgument names any other
  // tensor that is not in `names`.
  absl::StatusOr<StoredTensors> Renamed(
      const std::map<std::string, std::string>& names,
      absl::FunctionRef<bool(absl::string_view name)> redundant) const;

 private:
  explicit StoredTensors(std::string path) : path_(std::move(path)) {}

  std::string path_;
  absl::flat_hash_map<std::string, StoredTensor> index_;
};

}  // namespace tessera

#endif  // FRAMEWORK_CHECKPOINT_TENSOR_FILES_H_
