#ifndef FRAMEWORK_CHECKPOINT_SAFETENSORS_HEADER_H_
#define FRAMEWORK_CHECKPOINT_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// The JSON header of a safetensors file. The format
// (github.com/huggingface/safetensors, README): 8 bytes little-endian N, N
// bytes of JSON, then the tensors' bytes, row-major and little-endian:
//
//   {"__metadata__": {"key": "text"},
//    "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
//
// Offsets count from the end of the header. Sorted, the tensors cover the rest
// of the file without holes or overlaps.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

enum class StoredDtype {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
};

// The name in the header: "BF16".
absl::string_view Name(StoredDtype dtype);
int64_t SizeBytes(StoredDtype dtype);

// The description of a tensor.
struct TensorSpec {
  std::string name;
  StoredDtype dtype = StoredDtype::kF32;
  std::vector<int64_t> shape;  // empty for a scalar

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// InvalidArgument if the shape has a negative extent or overflows 64 bits.
absl::StatusOr<uint64_t> SizeBytes(const TensorSpec& spec);

// A tensor and its location: bytes [begin, end) of the data.
struct TensorEntry {
  TensorSpec spec;
  uint64_t begin = 0;
  uint64_t end = 0;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // by offset
  SafetensorsMetadata metadata;
};

// Parses the header's `json`; `data_bytes` follow it. Never allocates more than
// a small multiple of json.size(). InvalidArgument, naming the tensor, for
// everything that the format forbids: malformed JSON, unknown or missing
// fields, duplicate names, a shape that does not match its offsets, holes,
// overlaps, and offsets that do not end at the end of the data.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         uint64_t data_bytes);

// The header's JSON, padded with spaces so that the data starts at a multiple
// of 8. InvalidArgument if it is longer than the format allows or a name is not
// UTF-8.
absl::StatusOr<std::string> SerializeSafetensorsHeader(
    const SafetensorsHeader& header);

}  // namespace tessera

#endif  // FRAMEWORK_CHECKPOINT_SAFETENSORS_HEADER_H_
