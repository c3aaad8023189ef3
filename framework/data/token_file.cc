#include "framework/data/token_file.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian and are mapped, not converted");

constexpr char kTesseraMagic[8] = {'T', 'E', 'S', 'S', 'T', 'O', 'K', '\0'};
constexpr uint32_t kTesseraVersion = 1;

struct TesseraHeader {
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
  uint64_t tokens;
  uint64_t checksum;
  char reserved[32];
};
static_assert(sizeof(TesseraHeader) == 64);

constexpr int32_t kLlmCMagic = 20240520;
constexpr int32_t kLlmCVersion = 1;
constexpr int64_t kLlmCHeaderBytes = 256 * sizeof(int32_t);

absl::Status Malformed(const std::string& path, int64_t offset,
                       absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ", byte ", offset, ": ", what));
}

bool HasTesseraMagic(const MappedFile& file) {
  return file.size() >= int64_t{sizeof(kTesseraMagic)} &&
         memcmp(file.data(), kTesseraMagic, sizeof(kTesseraMagic)) == 0;
}

bool HasLlmCMagic(const MappedFile& file) {
  return file.size() >= int64_t{sizeof(kLlmCMagic)} &&
         memcmp(file.data(), &kLlmCMagic, sizeof(kLlmCMagic)) == 0;
}

// How many whole tokens lie behind a header, with the reason if the file's size
// is not that of `tokens`.
absl::Status CheckSize(const std::string& path, int64_t size, int64_t header,
                       int64_t token_bytes, uint64_t tokens) {
  const uint64_t room = static_cast<uint64_t>(size - header) / token_bytes;
  if (tokens == 0) return Malformed(path, header, "holds no tokens");
  if (tokens != room || (size - header) % token_bytes != 0) {
    return Malformed(
        path, size,
        absl::StrCat("the file ends here, but its header says ", tokens,
                     " tokens of ", token_bytes, " bytes behind ", header,
                     "; it is ", tokens > room ? "truncated" : "too long"));
  }
  return absl::OkStatus();
}

template <typename Token>
int64_t FindTooLarge(const uint8_t* data, int64_t tokens, int64_t vocab_size) {
  constexpr int64_t kBlock = 1 << 14;
  const auto* values = reinterpret_cast<const Token*>(data);
  for (int64_t begin = 0; begin < tokens; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, tokens);
    // The maximum of a block vectorizes; the search behind it runs once.
    if (*std::max_element(values + begin, values + end) < vocab_size) continue;
    return std::find_if(values + begin, values + end,
                        [=](Token t) { return t >= vocab_size; }) -
           values;
  }
  return -1;
}

}  // namespace

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path,
                                          TokenFileFormat format) {
  ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  TokenFile file(path, std::move(mapped));
  if (file.file_.size() == 0) return Malformed(path, 0, "the file is empty");
  if (format == TokenFileFormat::kDetect) {
    if (HasTesseraMagic(file.file_)) {
      format = TokenFileFormat::kTessera;
    } else if (HasLlmCMagic(file.file_)) {
      format = TokenFileFormat::kLlmC;
    } else {
      return Malformed(path, 0,
                       "neither the magic number of trainers:prepare_data nor "
                       "of llm.c; raw uint16 tokens as nanoGPT writes them "
                       "have none and need token_files.format = NANOGPT");
    }
  }
  file.format_ = format;
  switch (format) {
    case TokenFileFormat::kTessera:
      RETURN_IF_ERROR(file.ParseTessera());
      break;
    case TokenFileFormat::kLlmC:
      RETURN_IF_ERROR(file.ParseLlmC());
      break;
    default:
      RETURN_IF_ERROR(file.ParseNanoGpt());
  }
  return file;
}

absl::Status TokenFile::ParseTessera() {
  TesseraHeader header;
  if (!HasTesseraMagic(file_)) {
    return Malformed(path_, 0,
                     "not the magic number of trainers:prepare_data; the file "
                     "is of another format or was not finished");
  }
  if (file_.size() < int64_t{sizeof(header)}) {
    return Malformed(path_, file_.size(),
                     "truncated in its header of 64 bytes");
  }
  memcpy(&header, file_.data(), sizeof(header));
  if (header.version != kTesseraVersion) {
    return Malformed(
        path_, offsetof(TesseraHeader, version),
        absl::StrCat("version ", header.version,
                     "; this program reads version ", kTesseraVersion));
  }
  if (header.token_bytes != 2 && header.token_bytes != 4) {
    return Malformed(
        path_, offsetof(TesseraHeader, token_bytes),
        absl::StrCat(header.token_bytes, " bytes per token; must be 2 or 4"));
  }
  if (std::count(std::begin(header.reserved), std::end(header.reserved), 0) !=
      sizeof(header.reserved)) {
    return Malformed(path_, offsetof(TesseraHeader, reserved),
                     "reserved bytes that are not zero");
  }
  header_bytes_ = sizeof(header);
  token_bytes_ = header.token_bytes;
  stored_checksum_ = header.checksum;
  RETURN_IF_ERROR(CheckSize(path_, file_.size(), header_bytes_, token_bytes_,
                            header.tokens));
  tokens_ = static_cast<int64_t>(header.tokens);
  return absl::OkStatus();
}

absl::Status TokenFile::ParseNanoGpt() {
  if (HasTesseraMagic(file_) || HasLlmCMagic(file_)) {
    return Malformed(path_, 0,
                     "has a header, so it is not raw uint16 tokens; use "
                     "token_files.format = DETECT");
  }
  if (file_.size() % 2 != 0) {
    return Malformed(path_, file_.size() - 1,
                     "the last uint16 token is cut in half");
  }
  tokens_ = file_.size() / 2;
  return absl::OkStatus();
}

absl::Status TokenFile::ParseLlmC() {
  if (!HasLlmCMagic(file_)) {
    return Malformed(path_, 0, "not llm.c's magic number 20240520");
  }
  if (file_.size() < kLlmCHeaderBytes) {
    return Malformed(path_, file_.size(),
                     "truncated in its header of 256 int32");
  }
  int32_t header[3];
  memcpy(header, file_.data(), sizeof(header));
  if (header[1] != kLlmCVersion) {
    return Malformed(path_, 4,
                     absl::StrCat("llm.c version ", header[1],
                                  "; this program reads version 1 (uint16)"));
  }
  if (header[2] < 0) {
    return Malformed(path_, 8, absl::StrCat(header[2], " tokens"));
  }
  header_bytes_ = kLlmCHeaderBytes;
  RETURN_IF_ERROR(
      CheckSize(path_, file_.size(), header_bytes_, token_bytes_, header[2]));
  tokens_ = header[2];
  return absl::OkStatus();
}

void TokenFile::Read(int64_t begin, absl::Span<int64_t> out) const {
  const int64_t count = static_cast<int64_t>(out.size());
  TESSERA_CHECK(begin >= 0 && begin + count <= tokens_, path_, " token ",
                begin);
  const uint8_t* data = file_.data() + header_bytes_ + begin * token_bytes_;
  if (token_bytes_ == 2) {
    std::copy_n(reinterpret_cast<const uint16_t*>(data), count, out.data());
  } else {
    std::copy_n(reinterpret_cast<const uint32_t*>(data), count, out.data());
  }
}

absl::Status TokenFile::CheckTokens(int64_t vocab_size) const {
  const uint8_t* data = file_.data() + header_bytes_;
  const int64_t index = token_bytes_ == 2
                            ? FindTooLarge<uint16_t>(data, tokens_, vocab_size)
                            : FindTooLarge<uint32_t>(data, tokens_, vocab_size);
  if (index < 0) return absl::OkStatus();
  int64_t value;
  Read(index, absl::MakeSpan(&value, 1));
  return absl::OutOfRangeError(absl::StrCat(
      path_, ", byte ", header_bytes_ + index * token_bytes_, ": token ", index,
      " is ", value, ", but model.vocab_size is ", vocab_size,
      "; raise model.vocab_size or use the tokens of another vocabulary"));
}

uint64_t TokenFile::ComputeChecksum() const {
  return XXH3_64bits(file_.data() + header_bytes_, tokens_ * token_bytes_);
}

uint64_t TokenFile::checksum() const {
  return format_ == TokenFileFormat::kTessera ? stored_checksum_
                                              : ComputeChecksum();
}

absl::Status TokenFile::VerifyChecksum() const {
  if (format_ != TokenFileFormat::kTessera) return absl::OkStatus();
  const uint64_t computed = ComputeChecksum();
  if (computed == stored_checksum_) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "%s: the tokens have checksum %016x, the header says %016x; the file was "
      "damaged after it was written: prepare it again",
      path_, computed, stored_checksum_));
}

absl::StatusOr<std::unique_ptr<TokenFileWriter>> TokenFileWriter::Create(
    const std::string& path, int64_t vocab_size) {
  FILE* file = fopen(path.c_str(), "wbxe");
  if (file == nullptr) {
    return SystemError(errno, absl::StrCat("cannot create ", path));
  }
  const int64_t token_bytes = vocab_size <= 65536 ? 2 : 4;
  auto writer = std::unique_ptr<TokenFileWriter>(
      new TokenFileWriter(path, token_bytes, file));
  const TesseraHeader unfinished = {};
  RETURN_IF_ERROR(writer->Write(&unfinished, sizeof(unfinished)));
  return writer;
}

TokenFileWriter::TokenFileWriter(std::string path, int64_t token_bytes,
                                 FILE* file)
    : path_(std::move(path)),
      token_bytes_(token_bytes),
      file_(file),
      checksum_(XXH3_createState(), &XXH3_freeState) {
  XXH3_64bits_reset(checksum_.get());
}

TokenFileWriter::~TokenFileWriter() {
  if (file_ != nullptr) fclose(file_);
}

absl::Status TokenFileWriter::Write(const void* data, size_t bytes) {
  if (bytes == 0 || fwrite(data, bytes, 1, file_) == 1) {
    return absl::OkStatus();
  }
  return SystemError(errno, absl::StrCat("cannot write ", path_));
}

absl::Status TokenFileWriter::Append(absl::Span<const int32_t> ids) {
  const void* data = ids.data();
  if (token_bytes_ == 2) {
    narrow_.assign(ids.begin(), ids.end());
    data = narrow_.data();
  }
  const size_t bytes = ids.size() * token_bytes_;
  XXH3_64bits_update(checksum_.get(), data, bytes);
  tokens_ += static_cast<int64_t>(ids.size());
  return Write(data, bytes);
}

absl::StatusOr<TokenFileSummary> TokenFileWriter::Finish() {
  const TokenFileSummary summary = {tokens_,
                                    XXH3_64bits_digest(checksum_.get())};
  TesseraHeader header = {};
  memcpy(header.magic, kTesseraMagic, sizeof(kTesseraMagic));
  header.version = kTesseraVersion;
  header.token_bytes = static_cast<uint32_t>(token_bytes_);
  header.tokens = static_cast<uint64_t>(tokens_);
  header.checksum = summary.checksum;
  // The tokens must be on disk before a header that vouches for them.
  bool done = fflush(file_) == 0 && fsync(fileno(file_)) == 0 &&
              fseek(file_, 0, SEEK_SET) == 0 &&
              fwrite(&header, sizeof(header), 1, file_) == 1 &&
              fflush(file_) == 0 && fsync(fileno(file_)) == 0;
  done = fclose(std::exchange(file_, nullptr)) == 0 && done;
  if (done) return summary;
  return SystemError(errno, absl::StrCat("cannot finish ", path_));
}

}  // namespace tessera
