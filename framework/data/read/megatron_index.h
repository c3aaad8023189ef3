#ifndef FRAMEWORK_DATA_READ_MEGATRON_INDEX_H_
#define FRAMEWORK_DATA_READ_MEGATRON_INDEX_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "framework/base/random_access_file.h"
#include "framework/data/read/token_type.h"

namespace tessera {

// The index of a Megatron dataset (NVIDIA/Megatron-LM,
// megatron/core/datasets/indexed_dataset.py): NAME.idx describes the tokens in
// NAME.bin. All numbers are little-endian and not aligned.
//
//    0  char[9]  "MMIDIDX\0\0"
//    9  uint64   version, 1
//   17  uint8    type of a token: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64,
//                6 float64, 7 float32, 8 uint16
//   18  uint64   sequences S
//   26  uint64   documents D, plus one
//   34  int32    tokens of each of the S sequences
//       int64    byte of NAME.bin at which each of the S sequences begins
//       int64    sequence with which each document begins; then S
struct MegatronIndex {
  TokenType type = TokenType::kInt32;
  int64_t tokens = 0;
  // Where documents begin, ascending, in (0, tokens): without the first
  // document and without empty ones.
  std::vector<int64_t> document_starts;
};

// The index of `path`, which is NAME.idx, NAME.bin or NAME.
std::string MegatronIndexPath(const std::string& path);
// The tokens of `path`, which is NAME.idx, NAME.bin or NAME.
std::string MegatronTokensPath(const std::string& path);

// True if `path` is NAME.idx, or NAME.bin next to a NAME.idx that begins with
// the magic number.
bool IsMegatronPath(const std::string& path);

// Reads the index at `path` of `tokens_file`. InvalidArgument names the byte if
// the index is malformed, does not match the size of `tokens_file`, or
// describes anything except integers that follow each other without gaps.
absl::StatusOr<MegatronIndex> ReadMegatronIndex(
    const std::string& path, const RandomAccessFile& tokens_file);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_READ_MEGATRON_INDEX_H_
