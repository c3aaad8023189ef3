#include "framework/data/read/megatron_index.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "framework/base/status_macros.h"
#include "framework/data/read/malformed_file.h"

namespace tessera {
namespace {

constexpr absl::string_view kMagic("MMIDIDX\0\0", 9);
constexpr int64_t kVersionByte = 9;
constexpr int64_t kTypeByte = 17;
constexpr int64_t kSequencesByte = 18;
constexpr int64_t kDocumentsByte = 26;
constexpr int64_t kHeaderBytes = 34;

// Sequences that are read at a time.
constexpr int64_t kBlock = 1 << 16;

struct Header {
  TokenType type;
  int64_t sequences;
  int64_t documents;  // entries of the document index

  int64_t PointersByte() const { return kHeaderBytes + 4 * sequences; }
  int64_t DocumentIndexByte() const { return kHeaderBytes + 12 * sequences; }
  int64_t EndByte() const { return DocumentIndexByte() + 8 * documents; }
};

absl::string_view Prefix(absl::string_view path) {
  if (!absl::ConsumeSuffix(&path, ".idx")) absl::ConsumeSuffix(&path, ".bin");
  return path;
}

absl::StatusOr<std::string> ReadHead(const RandomAccessFile& file) {
  std::string head(std::min<int64_t>(file.size(), kHeaderBytes), 0);
  RETURN_IF_ERROR(file.Read(0, static_cast<int64_t>(head.size()), head.data()));
  return head;
}

std::optional<TokenType> TypeOf(int code) {
  switch (code) {
    case 1:
      return TokenType::kUint8;
    case 2:
      return TokenType::kInt8;
    case 3:
      return TokenType::kInt16;
    case 4:
      return TokenType::kInt32;
    case 5:
      return TokenType::kInt64;
    case 8:
      return TokenType::kUint16;
  }
  return std::nullopt;
}

// Checks that the arrays that the header announces end where the file ends.
absl::Status CheckSize(const RandomAccessFile& file, uint64_t sequences,
                       uint64_t documents) {
  const auto size = static_cast<uint64_t>(file.size());
  // Larger counts would overflow the sum.
  const bool fits = sequences <= size / 12 && documents <= size / 8;
  const uint64_t end = kHeaderBytes + 12 * sequences + 8 * documents;
  if (fits && end == size) return absl::OkStatus();
  return MalformedFile(
      file.path(), file.size(),
      absl::StrCat(
          "the file ends here, but its header says ", sequences,
          " sequences and ", documents, " entries of the document index; it ",
          fits && end < size
              ? "is too long (an index of multimodal data is not supported)"
              : "is truncated"));
}

absl::StatusOr<Header> ParseHeader(const RandomAccessFile& file) {
  ASSIGN_OR_RETURN(const std::string head, ReadHead(file));
  if (!absl::StartsWith(head, kMagic)) {
    return MalformedFile(file.path(), 0,
                         "has no magic number of a Megatron index: MMIDIDX");
  }
  if (file.size() < kHeaderBytes) {
    return MalformedFile(file.path(), file.size(),
                         "truncated in its header of 34 bytes");
  }
  uint64_t version, sequences, documents;
  memcpy(&version, head.data() + kVersionByte, sizeof(version));
  memcpy(&sequences, head.data() + kSequencesByte, sizeof(sequences));
  memcpy(&documents, head.data() + kDocumentsByte, sizeof(documents));
  if (version != 1) {
    return MalformedFile(file.path(), kVersionByte,
                         absl::StrCat("Megatron index of version ", version,
                                      "; this program reads version 1"));
  }
  const int code = static_cast<uint8_t>(head[kTypeByte]);
  const std::optional<TokenType> type = TypeOf(code);
  if (!type.has_value()) {
    const absl::string_view name = code == 6   ? "float64"
                                   : code == 7 ? "float32"
                                               : "unknown";
    return MalformedFile(
        file.path(), kTypeByte,
        absl::StrCat("tokens of type ", code, " (", name,
                     "); must be uint8, int8, uint16, int16, int32 or int64"));
  }
  RETURN_IF_ERROR(CheckSize(file, sequences, documents));
  return Header{*type, static_cast<int64_t>(sequences),
                static_cast<int64_t>(documents)};
}

// The document index: the numbers of sequences.
absl::StatusOr<std::vector<int64_t>> ReadDocuments(const RandomAccessFile& file,
                                                   const Header& header) {
  std::vector<int64_t> documents(header.documents);
  RETURN_IF_ERROR(file.Read(header.DocumentIndexByte(), 8 * header.documents,
                            documents.data()));
  int64_t least = 0;
  for (int64_t i = 0; i < header.documents; ++i) {
    const int64_t sequence = documents[i];
    const int64_t most = i == 0 ? 0 : header.sequences;
    if (sequence < least || sequence > most) {
      return MalformedFile(
          file.path(), header.DocumentIndexByte() + 8 * i,
          absl::StrCat("document ", i, " begins with sequence ", sequence,
                       "; must be in [", least, ", ", most, "]"));
    }
    least = sequence;
  }
  return documents;
}

// Reads the sequences, checks them, and calls visit(sequence, first token) for
// each. Returns the number of tokens.
template <typename Visitor>
absl::StatusOr<int64_t> ReadSequences(const RandomAccessFile& file,
                                      const Header& header,
                                      const RandomAccessFile& tokens_file,
                                      const Visitor& visit) {
  const int64_t token_bytes = TokenBytes(header.type);
  std::vector<int32_t> lengths(std::min(kBlock, header.sequences));
  std::vector<int64_t> pointers(lengths.size());
  int64_t tokens = 0;
  for (int64_t i = 0; i < header.sequences; ++i) {
    const int64_t place = i % kBlock;
    if (place == 0) {
      const int64_t count = std::min(kBlock, header.sequences - i);
      RETURN_IF_ERROR(
          file.Read(kHeaderBytes + 4 * i, 4 * count, lengths.data()));
      RETURN_IF_ERROR(
          file.Read(header.PointersByte() + 8 * i, 8 * count, pointers.data()));
    }
    visit(i, tokens);
    const int64_t length = lengths[place];
    if (length < 0 || length > tokens_file.size() / token_bytes - tokens) {
      return MalformedFile(
          file.path(), kHeaderBytes + 4 * i,
          absl::StrCat("sequence ", i, " has ", length, " tokens after the ",
                       tokens, " tokens before it, but ", tokens_file.path(),
                       " has room for ", tokens_file.size() / token_bytes));
    }
    if (pointers[place] != tokens * token_bytes) {
      return MalformedFile(
          file.path(), header.PointersByte() + 8 * i,
          absl::StrCat("sequence ", i, " begins at byte ", pointers[place],
                       " of ", tokens_file.path(), "; must begin at byte ",
                       tokens * token_bytes, ", where the one before it ends"));
    }
    tokens += length;
  }
  return tokens;
}

}  // namespace

std::string MegatronIndexPath(const std::string& path) {
  return absl::StrCat(Prefix(path), ".idx");
}

std::string MegatronTokensPath(const std::string& path) {
  return absl::StrCat(Prefix(path), ".bin");
}

bool IsMegatronPath(const std::string& path) {
  if (absl::EndsWith(path, ".idx")) return true;
  if (!absl::EndsWith(path, ".bin")) return false;
  const auto file = RandomAccessFile::Open(MegatronIndexPath(path));
  if (!file.ok()) return false;
  const absl::StatusOr<std::string> head = ReadHead(*file);
  return head.ok() && absl::StartsWith(*head, kMagic);
}

absl::StatusOr<MegatronIndex> ReadMegatronIndex(
    const std::string& path, const RandomAccessFile& tokens_file) {
  ASSIGN_OR_RETURN(const RandomAccessFile file, RandomAccessFile::Open(path));
  ASSIGN_OR_RETURN(const Header header, ParseHeader(file));
  ASSIGN_OR_RETURN(std::vector<int64_t> starts, ReadDocuments(file, header));
  MegatronIndex index = {.type = header.type};
  // Replaces each number of a sequence by its first token.
  auto next = starts.begin();
  ASSIGN_OR_RETURN(
      index.tokens,
      ReadSequences(file, header, tokens_file,
                    [&](int64_t sequence, int64_t first_token) {
                      while (next != starts.end() && *next == sequence) {
                        *next++ = first_token;
                      }
                    }));
  starts.erase(next, starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  if (!starts.empty() && starts.front() == 0) starts.erase(starts.begin());
  if (!starts.empty() && starts.back() == index.tokens) starts.pop_back();
  index.document_starts = std::move(starts);
  const int64_t end = index.tokens * TokenBytes(index.type);
  if (end != tokens_file.size()) {
    return MalformedFile(
        tokens_file.path(), end,
        absl::StrCat("the tokens of ", path, " end here, but the file has ",
                     tokens_file.size(), " bytes; it is too long"));
  }
  return index;
}

}  // namespace tessera
