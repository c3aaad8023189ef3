#include "framework/data/read/token_file.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"
#include "framework/data/read/malformed_file.h"
#include "framework/data/read/megatron_index.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian and are copied, not converted");

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

struct LlmCVariant {
  int32_t magic;
  int32_t version;
  TokenType type;
};
constexpr LlmCVariant kLlmCVariants[] = {{20240520, 1, TokenType::kUint16},
                                         {20240801, 7, TokenType::kUint32}};
constexpr int64_t kLlmCHeaderBytes = 256 * sizeof(int32_t);

// Block size for reading a whole file.
constexpr int64_t kBlockBytes = 1 << 20;

// End-of-text of the vocabularies of GPT-2 and Llama 3.
constexpr int64_t kGpt2EndOfText = 50256;
constexpr int64_t kLlama3EndOfText = 128000;

bool HasTesseraMagic(absl::string_view head) {
  return absl::StartsWith(
      head, absl::string_view(kTesseraMagic, sizeof(kTesseraMagic)));
}

// Null if `head` has no magic number of llm.c.
const LlmCVariant* FindLlmCVariant(absl::string_view head) {
  int32_t magic;
  if (head.size() < sizeof(magic)) return nullptr;
  memcpy(&magic, head.data(), sizeof(magic));
  for (const LlmCVariant& variant : kLlmCVariants) {
    if (variant.magic == magic) return &variant;
  }
  return nullptr;
}

// The format of a file that begins with `head`, requested as `format`.
absl::StatusOr<TokenFileFormat> FindFormat(const std::string& path,
                                           absl::string_view head,
                                           TokenFileFormat format) {
  if (format == TokenFileFormat::kTessera || format == TokenFileFormat::kLlmC) {
    return format;
  }
  if (HasTesseraMagic(head)) return TokenFileFormat::kTessera;
  if (FindLlmCVariant(head) != nullptr) return TokenFileFormat::kLlmC;
  if (format == TokenFileFormat::kNanoGpt) return format;
  return MalformedFile(
      path, 0,
      "has neither the magic number of trainers:prepare_data nor "
      "that of llm.c, and no Megatron index next to it; for raw "
      "uint16 tokens as written by nanoGPT set "
      "token_files.format = NANOGPT");
}

// Checks that exactly `tokens` whole tokens follow the header; the error says
// why not.
absl::Status CheckSize(const std::string& path, int64_t size, int64_t header,
                       int64_t token_bytes, uint64_t tokens) {
  const uint64_t room = static_cast<uint64_t>(size - header) / token_bytes;
  if (tokens == 0) return MalformedFile(path, header, "holds no tokens");
  if (tokens != room || (size - header) % token_bytes != 0) {
    return MalformedFile(
        path, size,
        absl::StrCat("the file ends here, but its header says ", tokens,
                     " tokens of ", token_bytes, " bytes after its header of ",
                     header, " bytes; it is ",
                     tokens > room ? "truncated" : "too long"));
  }
  return absl::OkStatus();
}

// The largest of `count` values.
template <typename Token>
Token Largest(const Token* values, int64_t count) {
  // Several maxima side by side, so that the compiler can vectorise.
  constexpr int64_t kLanes = 32;
  Token lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = std::max(lanes[lane], values[i + lane]);
    }
  }
  for (; i < count; ++i) lanes[0] = std::max(lanes[0], values[i]);
  return *std::max_element(lanes, lanes + kLanes);
}

struct Found {
  int64_t index = -1;  // negative: none
  int64_t value = 0;
};

// The first value that is not in [0, vocab_size).
template <typename Token>
Found FindOutside(const Token* values, int64_t count, int64_t vocab_size) {
  // As unsigned numbers, negative ones are above the largest of the type.
  using Unsigned = std::make_unsigned_t<Token>;
  const auto* const numbers = reinterpret_cast<const Unsigned*>(values);
  const auto limit =
      std::min(static_cast<uint64_t>(vocab_size),
               uint64_t{std::numeric_limits<Token>::max()} + uint64_t{1});
  if (Largest(numbers, count) < limit) return {};
  const Unsigned* const found = std::find_if(
      numbers, numbers + count, [=](Unsigned t) { return t >= limit; });
  return {found - numbers, values[found - numbers]};
}

Found FindOutside(TokenType type, const void* bytes, int64_t count,
                  int64_t vocab_size) {
  return VisitTokenType(type, [&](auto token) {
    return FindOutside(static_cast<const decltype(token)*>(bytes), count,
                       vocab_size);
  });
}

void Widen(TokenType type, const void* bytes, absl::Span<int64_t> out) {
  VisitTokenType(type, [&](auto token) {
    std::copy_n(static_cast<const decltype(token)*>(bytes), out.size(),
                out.data());
  });
}

// Appends the places of `wanted` in `bytes`, which begin with token `first`.
void FindAll(TokenType type, absl::string_view bytes, int64_t wanted,
             int64_t first, std::vector<int64_t>* places) {
  VisitTokenType(type, [&](auto token) {
    using Token = decltype(token);
    const auto* const begin = reinterpret_cast<const Token*>(bytes.data());
    const Token* const end = begin + bytes.size() / sizeof(Token);
    const auto value = static_cast<Token>(wanted);
    if (static_cast<int64_t>(value) != wanted) return;  // none can be equal
    for (const Token* found = std::find(begin, end, value); found != end;
         found = std::find(found + 1, end, value)) {
      places->push_back(first + (found - begin));
    }
  });
}

}  // namespace

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path,
                                          TokenFileFormat format) {
  const bool detects =
      format == TokenFileFormat::kDetect || format == TokenFileFormat::kNanoGpt;
  const bool is_megatron =
      format == TokenFileFormat::kMegatron || (detects && IsMegatronPath(path));
  ASSIGN_OR_RETURN(
      RandomAccessFile opened,
      RandomAccessFile::Open(is_megatron ? MegatronTokensPath(path) : path));
  TokenFile file(std::move(opened));
  if (is_megatron) {
    RETURN_IF_ERROR(file.ParseMegatronIndex(MegatronIndexPath(path)));
    return file;
  }
  if (file.file_.size() == 0)
    return MalformedFile(path, 0, "the file is empty");
  std::string head(std::min<int64_t>(file.file_.size(), kLlmCHeaderBytes), 0);
  RETURN_IF_ERROR(
      file.file_.Read(0, static_cast<int64_t>(head.size()), head.data()));
  ASSIGN_OR_RETURN(file.format_, FindFormat(path, head, format));
  switch (file.format_) {
    case TokenFileFormat::kTessera:
      RETURN_IF_ERROR(file.ParseTessera(head));
      break;
    case TokenFileFormat::kLlmC:
      RETURN_IF_ERROR(file.ParseLlmC(head));
      break;
    default:
      RETURN_IF_ERROR(file.ParseNanoGpt());
  }
  return file;
}

absl::Status TokenFile::ParseTessera(absl::string_view head) {
  TesseraHeader header;
  if (!HasTesseraMagic(head)) {
    return MalformedFile(
        path(), 0,
        "has no magic number of trainers:prepare_data; the file "
        "has another format or was not finished");
  }
  if (file_.size() < int64_t{sizeof(header)}) {
    return MalformedFile(path(), file_.size(),
                         "truncated in its header of 64 bytes");
  }
  memcpy(&header, head.data(), sizeof(header));
  if (header.version != kTesseraVersion) {
    return MalformedFile(
        path(), offsetof(TesseraHeader, version),
        absl::StrCat("version ", header.version,
                     "; this program reads version ", kTesseraVersion));
  }
  if (header.token_bytes != 2 && header.token_bytes != 4) {
    return MalformedFile(
        path(), offsetof(TesseraHeader, token_bytes),
        absl::StrCat(header.token_bytes, " bytes per token; must be 2 or 4"));
  }
  if (std::count(std::begin(header.reserved), std::end(header.reserved), 0) !=
      sizeof(header.reserved)) {
    return MalformedFile(path(), offsetof(TesseraHeader, reserved),
                         "has reserved bytes that are not zero");
  }
  header_bytes_ = sizeof(header);
  SetType(header.token_bytes == 2 ? TokenType::kUint16 : TokenType::kUint32);
  stored_checksum_ = header.checksum;
  RETURN_IF_ERROR(CheckSize(path(), file_.size(), header_bytes_, token_bytes_,
                            header.tokens));
  tokens_ = static_cast<int64_t>(header.tokens);
  return absl::OkStatus();
}

absl::Status TokenFile::ParseNanoGpt() {
  if (file_.size() % 2 != 0) {
    return MalformedFile(path(), file_.size() - 1,
                         "the last uint16 token is cut in half");
  }
  tokens_ = file_.size() / 2;
  return absl::OkStatus();
}

absl::Status TokenFile::ParseLlmC(absl::string_view head) {
  const LlmCVariant* const variant = FindLlmCVariant(head);
  if (variant == nullptr) {
    return MalformedFile(
        path(), 0,
        "has no magic number of llm.c: 20240520 (uint16) or 20240801 "
        "(uint32)");
  }
  if (file_.size() < kLlmCHeaderBytes) {
    return MalformedFile(path(), file_.size(),
                         "truncated in its header of 256 int32");
  }
  int32_t header[3];
  memcpy(header, head.data(), sizeof(header));
  if (header[1] != variant->version) {
    return MalformedFile(
        path(), 4,
        absl::StrCat("llm.c version ", header[1],
                     "; of files with the magic number ", variant->magic,
                     " this program reads version ", variant->version));
  }
  if (header[2] < 0) {
    return MalformedFile(path(), 8, absl::StrCat(header[2], " tokens"));
  }
  header_bytes_ = kLlmCHeaderBytes;
  SetType(variant->type);
  RETURN_IF_ERROR(
      CheckSize(path(), file_.size(), header_bytes_, token_bytes_, header[2]));
  tokens_ = header[2];
  return absl::OkStatus();
}

absl::Status TokenFile::ParseMegatronIndex(const std::string& path) {
  ASSIGN_OR_RETURN(MegatronIndex index, ReadMegatronIndex(path, file_));
  if (index.tokens == 0) return MalformedFile(path, 0, "holds no tokens");
  format_ = TokenFileFormat::kMegatron;
  SetType(index.type);
  tokens_ = index.tokens;
  document_starts_ = std::move(index.document_starts);
  return absl::OkStatus();
}

absl::Status TokenFile::Read(int64_t begin, absl::Span<int64_t> out) const {
  TESSERA_CHECK(
      begin >= 0 && begin + static_cast<int64_t>(out.size()) <= tokens_, path(),
      " token ", begin);
  alignas(int64_t) uint8_t bytes[16 << 10];
  while (!out.empty()) {
    const auto part =
        out.first(std::min<size_t>(out.size(), sizeof(bytes) / token_bytes_));
    const auto count = static_cast<int64_t>(part.size());
    RETURN_IF_ERROR(file_.Read(ByteOf(begin), count * token_bytes_, bytes));
    Widen(type_, bytes, part);
    const Found bad = FindOutside(type_, bytes, count, vocab_size_);
    if (bad.index >= 0) {
      return absl::DataLossError(absl::StrCat(
          path(), ", byte ", ByteOf(begin + bad.index), ": token ",
          begin + bad.index, " is ", bad.value, ", but every token was below ",
          vocab_size_,
          " when the file was opened; another program changed it; restore the "
          "file and do not change it while it is read"));
    }
    out.remove_prefix(part.size());
    begin += count;
  }
  return absl::OkStatus();
}

absl::Status TokenFile::ForEachBlock(
    absl::FunctionRef<absl::Status(int64_t, absl::string_view)> visit) const {
  const auto block = std::make_unique<int64_t[]>(kBlockBytes / 8);
  const int64_t block_tokens = kBlockBytes / token_bytes_;
  for (int64_t first = 0; first < tokens_; first += block_tokens) {
    const int64_t bytes =
        std::min(block_tokens, tokens_ - first) * token_bytes_;
    RETURN_IF_ERROR(file_.Read(ByteOf(first), bytes, block.get()));
    RETURN_IF_ERROR(visit(
        first, absl::string_view(reinterpret_cast<const char*>(block.get()),
                                 static_cast<size_t>(bytes))));
  }
  return absl::OkStatus();
}

absl::Status TokenFile::LimitTokens(
    int64_t vocab_size, const std::optional<EndOfText>& end_of_text) {
  std::vector<int64_t> starts;
  RETURN_IF_ERROR(ForEachBlock([&](int64_t first, absl::string_view bytes) {
    const auto count = static_cast<int64_t>(bytes.size()) / token_bytes_;
    if (end_of_text.has_value()) {
      FindAll(type_, bytes, end_of_text->token,
              end_of_text->is_before ? first : first + 1, &starts);
    }
    const Found bad = FindOutside(type_, bytes.data(), count, vocab_size);
    if (bad.index < 0) return absl::OkStatus();
    return absl::OutOfRangeError(absl::StrCat(
        path(), ", byte ", ByteOf(first + bad.index), ": token ",
        first + bad.index, " is ", bad.value, ", but model.vocab_size is ",
        vocab_size,
        "; raise model.vocab_size or use the tokens of another vocabulary"));
  }));
  vocab_size_ = vocab_size;
  if (end_of_text.has_value()) {
    int64_t begin = 0;  // of the document
    std::erase_if(starts, [&](int64_t start) {
      if (start <= begin + end_of_text->begin_tokens) return true;
      begin = start;
      return false;
    });
    if (!starts.empty() && starts.back() == tokens_) starts.pop_back();
    document_starts_ = std::move(starts);
  }
  return absl::OkStatus();
}

std::optional<EndOfText> TokenFile::end_of_text() const {
  switch (format_) {
    case TokenFileFormat::kNanoGpt:
      return EndOfText{kGpt2EndOfText, /*is_before=*/false};
    case TokenFileFormat::kLlmC:
      return EndOfText{
          type_ == TokenType::kUint16 ? kGpt2EndOfText : kLlama3EndOfText,
          /*is_before=*/true};
    default:
      return std::nullopt;
  }
}

absl::StatusOr<uint64_t> TokenFile::ComputeChecksum() const {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(
      XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  RETURN_IF_ERROR(ForEachBlock([&](int64_t, absl::string_view bytes) {
    XXH3_64bits_update(state.get(), bytes.data(), bytes.size());
    return absl::OkStatus();
  }));
  return XXH3_64bits_digest(state.get());
}

absl::StatusOr<uint64_t> TokenFile::checksum() const {
  if (format_ == TokenFileFormat::kTessera) return stored_checksum_;
  return ComputeChecksum();
}

absl::Status TokenFile::VerifyChecksum() const {
  if (format_ != TokenFileFormat::kTessera) return absl::OkStatus();
  ASSIGN_OR_RETURN(const uint64_t computed, ComputeChecksum());
  if (computed == stored_checksum_) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "%s: the tokens have checksum %016x, the header says %016x; the file was "
      "damaged after it was written: prepare it again",
      path(), computed, stored_checksum_));
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
  // Sync the tokens before writing the header, which makes the file valid.
  bool done = fflush(file_) == 0 && fsync(fileno(file_)) == 0 &&
              fseek(file_, 0, SEEK_SET) == 0 &&
              fwrite(&header, sizeof(header), 1, file_) == 1 &&
              fflush(file_) == 0 && fsync(fileno(file_)) == 0;
  done = fclose(std::exchange(file_, nullptr)) == 0 && done;
  if (done) return summary;
  return SystemError(errno, absl::StrCat("cannot finish ", path_));
}

}  // namespace tessera
