#ifndef FRAMEWORK_DATA_READ_TOKEN_FILE_H_
#define FRAMEWORK_DATA_READ_TOKEN_FILE_H_

#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/base/random_access_file.h"
#include "framework/data/read/token_type.h"
#include "xxhash.h"

namespace tessera {

// Formats of token files. All numbers are little-endian.
//
//   kTessera  a header of 64 bytes, then the tokens:
//               0  char[8]  "TESSTOK\0"
//               8  uint32   version, 1
//              12  uint32   bytes per token, 2 or 4
//              16  uint64   tokens
//              24  uint64   XXH3-64 of the bytes after the header
//              32           zeros
//   kNanoGpt  uint16 tokens and nothing else (karpathy/nanoGPT, prepare.py)
//   kLlmC     256 int32 {magic, version, tokens, 0...}, then the tokens
//             (karpathy/llm.c, dev/data/data_common.py):
//               20240520, 1  uint16, GPT-2's vocabulary
//               20240801, 7  uint32, Llama 3's
//   kMegatron tokens and nothing else, described by a second file, NAME.idx
//             (megatron_index.h)
enum class TokenFileFormat {
  kDetect,  // kTessera, kLlmC or kMegatron, by magic number
  kTessera,
  kNanoGpt,  // as kDetect; kNanoGpt without a magic number
  kLlmC,
  kMegatron,
};

// The token between two documents.
struct EndOfText {
  int64_t token = 0;
  // If true, the first token of a document, else the last one.
  bool is_before = false;
  // The number of tokens at the beginning of a document that end none: a
  // tokenizer may begin a text with the token that ends one.
  int64_t begin_tokens = 0;

  bool operator==(const EndOfText&) const = default;
};

// A token file. It stays open; tokens are read on demand.
class TokenFile {
 public:
  // Rejects a file that is empty or truncated, or whose format, version or size
  // differs from its header. The message names the file and the byte. A
  // Megatron dataset is opened by NAME.bin, NAME.idx or, with kMegatron, NAME.
  static absl::StatusOr<TokenFile> Open(const std::string& path,
                                        TokenFileFormat format);

  const std::string& path() const { return file_.path(); }
  TokenFileFormat format() const { return format_; }
  int64_t tokens() const { return tokens_; }

  // Copies tokens [begin, begin + out.size()), which must lie in the file.
  // DataLoss, with file and byte, if another program has truncated the file
  // since it was opened, or has written a token that LimitTokens() rejects.
  absl::Status Read(int64_t begin, absl::Span<int64_t> out) const;

  // Reads the whole file and checks that every token is below `vocab_size`; an
  // embedding would read past its table. OutOfRange with file and byte offset.
  // After this call Read() checks the tokens, too. In the same pass finds the
  // documents that `end_of_text`, if given, divides.
  absl::Status LimitTokens(
      int64_t vocab_size,
      const std::optional<EndOfText>& end_of_text = std::nullopt);

  // What the format's own programs write between documents: the end-of-text
  // token of GPT-2 or Llama 3. Nothing for kTessera, whose vocabulary is
  // unknown, and for kMegatron, which does not mark documents by tokens.
  std::optional<EndOfText> end_of_text() const;

  // Moves out where documents begin, ascending, in (0, tokens()): those that
  // LimitTokens() found, else those of a kMegatron file's index.
  std::vector<int64_t> TakeDocumentStarts() {
    return std::exchange(document_starts_, {});
  }

  // XXH3-64 of the tokens' bytes: from the header of a kTessera file, which
  // VerifyChecksum() compares with the tokens; for other formats, computed in
  // each call.
  absl::StatusOr<uint64_t> checksum() const;
  // Reads all tokens. DataLoss if those of a kTessera file do not match its
  // checksum. The other formats have no checksum and pass.
  absl::Status VerifyChecksum() const;

 private:
  explicit TokenFile(RandomAccessFile file) : file_(std::move(file)) {}
  // `head` is the beginning of the file.
  absl::Status ParseTessera(absl::string_view head);
  absl::Status ParseNanoGpt();
  absl::Status ParseLlmC(absl::string_view head);
  absl::Status ParseMegatronIndex(const std::string& path);
  void SetType(TokenType type) {
    type_ = type;
    token_bytes_ = TokenBytes(type);
  }
  // Calls `visit` with the bytes of all tokens, block by block.
  absl::Status ForEachBlock(absl::FunctionRef<absl::Status(
                                int64_t first_token, absl::string_view bytes)>
                                visit) const;
  absl::StatusOr<uint64_t> ComputeChecksum() const;
  int64_t ByteOf(int64_t token) const {
    return header_bytes_ + token * token_bytes_;
  }

  RandomAccessFile file_;
  TokenFileFormat format_ = TokenFileFormat::kDetect;
  int64_t header_bytes_ = 0;
  TokenType type_ = TokenType::kUint16;
  int64_t token_bytes_ = 2;
  int64_t tokens_ = 0;
  std::vector<int64_t> document_starts_;
  uint64_t stored_checksum_ = 0;
  // The limit set by LimitTokens().
  int64_t vocab_size_ = std::numeric_limits<int64_t>::max();
};

struct TokenFileSummary {
  int64_t tokens = 0;
  uint64_t checksum = 0;  // XXH3-64 of the tokens' bytes
};

// Writes a kTessera file. The header is zero until Finish(), so that
// TokenFile::Open() rejects an unfinished file.
class TokenFileWriter {
 public:
  // `vocab_size` picks the width: 2 bytes up to 65,536, else 4.
  static absl::StatusOr<std::unique_ptr<TokenFileWriter>> Create(
      const std::string& path, int64_t vocab_size);
  ~TokenFileWriter();

  // Ids must be in [0, vocab_size).
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

#endif  // FRAMEWORK_DATA_READ_TOKEN_FILE_H_
