#ifndef FRAMEWORK_DATA_TOKEN_FILE_H_
#define FRAMEWORK_DATA_TOKEN_FILE_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "framework/base/mapped_file.h"
#include "xxhash.h"

namespace tessera {

// Files of token ids. Every number is little-endian.
//
//   kTessera  a header of 64 bytes, then the tokens:
//               0  char[8]  "TESSTOK\0"
//               8  uint32   version, 1
//              12  uint32   bytes per token, 2 or 4
//              16  uint64   tokens
//              24  uint64   XXH3-64 of the bytes behind the header
//              32           zeros
//   kNanoGpt  uint16 tokens and nothing else (karpathy/nanoGPT, prepare.py)
//   kLlmC     256 int32 {20240520, 1, tokens, 0...}, then uint16 tokens
//             (karpathy/llm.c, dev/data/data_common.py)
enum class TokenFileFormat {
  kDetect,  // kTessera or kLlmC, by magic; kNanoGpt has none
  kTessera,
  kNanoGpt,
  kLlmC,
};

// A token file, memory-mapped.
class TokenFile {
 public:
  // Refuses a file that is truncated, empty, of another format, version or size
  // than its header says; the message names the file and the byte.
  static absl::StatusOr<TokenFile> Open(const std::string& path,
                                        TokenFileFormat format);

  const std::string& path() const { return path_; }
  TokenFileFormat format() const { return format_; }
  int64_t tokens() const { return tokens_; }

  // Copies tokens [begin, begin + out.size()), which must lie in the file.
  void Read(int64_t begin, absl::Span<int64_t> out) const;

  // Reads the whole file: every token must be below `vocab_size`, because an
  // embedding would read past its table. OutOfRange with file and byte offset.
  absl::Status CheckTokens(int64_t vocab_size) const;

  // XXH3-64 of the tokens' bytes: as the header of a kTessera file says, which
  // VerifyChecksum() compares with the tokens; of others, computed at each
  // call.
  uint64_t checksum() const;
  // DataLoss where the tokens of a kTessera file are not those that were
  // written; reads them all. The other formats cannot tell and pass.
  absl::Status VerifyChecksum() const;

 private:
  TokenFile(std::string path, MappedFile file)
      : path_(std::move(path)), file_(std::move(file)) {}
  absl::Status ParseTessera();
  absl::Status ParseNanoGpt();
  absl::Status ParseLlmC();
  uint64_t ComputeChecksum() const;

  std::string path_;
  MappedFile file_;
  TokenFileFormat format_ = TokenFileFormat::kDetect;
  int64_t header_bytes_ = 0;
  int64_t token_bytes_ = 2;
  int64_t tokens_ = 0;
  uint64_t stored_checksum_ = 0;
};

struct TokenFileSummary {
  int64_t tokens = 0;
  uint64_t checksum = 0;  // XXH3-64 of the tokens' bytes
};

// Writes a kTessera file. Until Finish() the file's header is zero, which
// TokenFile::Open() refuses.
class TokenFileWriter {
 public:
  // `vocab_size` picks the width: 2 bytes up to 65,536, else 4.
  static absl::StatusOr<std::unique_ptr<TokenFileWriter>> Create(
      const std::string& path, int64_t vocab_size);
  ~TokenFileWriter();

  // Every id in [0, vocab_size).
  absl::Status Append(absl::Span<const int32_t> ids);
  // Writes the header, syncs the file to disk and closes it.
  absl::StatusOr<TokenFileSummary> Finish();

 private:
  TokenFileWriter(std::string path, int64_t token_bytes, FILE* file);
  absl::Status Write(const void* data, size_t bytes);

  const std::string path_;
  const int64_t token_bytes_;
  FILE* file_;
  int64_t tokens_ = 0;
  std::vector<uint16_t> narrow_;  // reused by Append()
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> checksum_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_TOKEN_FILE_H_
