#include "framework/data/prepare/byte_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"

namespace tessera {
namespace {

constexpr size_t kInputBytes = 256 << 10;
constexpr size_t kOutputBytes = 1 << 20;

class GzipDecoder : public ByteStream::Decoder {
 public:
  GzipDecoder() {
    constexpr int kGzip = 16, kWindowBits = 15;
    TESSERA_CHECK(inflateInit2(&state_, kWindowBits + kGzip) == Z_OK,
                  "zlib refuses to start");
  }
  ~GzipDecoder() override { inflateEnd(&state_); }

  absl::StatusOr<size_t> Decode(absl::string_view* input,
                                absl::Span<char> output) override {
    if (may_end_) {
      // Tapes and block devices pad files with zeros.
      input->remove_prefix(
          std::min(input->find_first_not_of('\0'), input->size()));
      if (input->empty()) return 0;
      inflateReset(&state_);  // for the next member
      may_end_ = false;
    }
    state_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input->data()));
    state_.avail_in = static_cast<uInt>(input->size());
    state_.next_out = reinterpret_cast<Bytef*>(output.data());
    state_.avail_out = static_cast<uInt>(output.size());
    const int result = inflate(&state_, Z_NO_FLUSH);
    input->remove_prefix(input->size() - state_.avail_in);
    may_end_ = result == Z_STREAM_END;
    if (!may_end_ && result != Z_OK && result != Z_BUF_ERROR) {
      return absl::DataLossError(state_.msg != nullptr ? state_.msg
                                                       : zError(result));
    }
    return output.size() - state_.avail_out;
  }
  bool may_end() const override { return may_end_; }

 private:
  z_stream state_ = {};
  bool may_end_ = false;
};

class ZstdDecoder : public ByteStream::Decoder {
 public:
  ZstdDecoder() {
    // Reads everything that `zstd --long=31` writes.
    constexpr int kMostWindowBits = 31;
    ZSTD_DCtx_setParameter(state_.get(), ZSTD_d_windowLogMax, kMostWindowBits);
  }

  absl::StatusOr<size_t> Decode(absl::string_view* input,
                                absl::Span<char> output) override {
    if (may_end_ && input->empty()) return 0;
    ZSTD_inBuffer in = {input->data(), input->size(), 0};
    ZSTD_outBuffer out = {output.data(), output.size(), 0};
    const size_t result = ZSTD_decompressStream(state_.get(), &out, &in);
    if (ZSTD_isError(result)) {
      return absl::DataLossError(ZSTD_getErrorName(result));
    }
    input->remove_prefix(in.pos);
    may_end_ = result == 0;
    return out.pos;
  }
  bool may_end() const override { return may_end_; }

 private:
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> state_{
      ZSTD_createDCtx(), ZSTD_freeDCtx};
  bool may_end_ = false;
};

// The compression of a file that begins with `head`; kNone also if that is a
// skippable frame of zstd.
Compression Detect(absl::string_view head) {
  if (absl::StartsWith(head, "\x1f\x8b")) return Compression::kGzip;
  if (absl::StartsWith(head, "\x28\xb5\x2f\xfd")) return Compression::kZstd;
  return Compression::kNone;
}

std::unique_ptr<ByteStream::Decoder> MakeDecoder(Compression compression) {
  switch (compression) {
    case Compression::kGzip:
      return std::make_unique<GzipDecoder>();
    case Compression::kZstd:
      return std::make_unique<ZstdDecoder>();
    default:
      return nullptr;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ByteStream>> ByteStream::Open(
    const std::string& path, Compression compression,
    std::function<absl::Status()> check_stop) {
  const bool is_stdin = path == kStandardInput;
  const int descriptor = is_stdin ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                                  : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string name = is_stdin ? "standard input" : path;
  if (descriptor < 0) {
    return SystemError(errno, absl::StrCat("cannot open ", name));
  }
  struct stat info = {};
  fstat(descriptor, &info);
  return absl::WrapUnique(new ByteStream(
      std::move(name), descriptor, S_ISREG(info.st_mode) ? info.st_size : 0,
      compression, std::move(check_stop)));
}

ByteStream::ByteStream(std::string name, int descriptor, int64_t size,
                       Compression compression,
                       std::function<absl::Status()> check_stop)
    : name_(std::move(name)),
      descriptor_(descriptor),
      size_(size),
      compression_(compression),
      check_stop_(std::move(check_stop)),
      buffer_(kInputBytes) {}

double ByteStream::fraction() const {
  return size_ > 0 ? std::min(1.0, static_cast<double>(read_) / size_) : 0;
}

// Waits for the file to have bytes, or an end.
absl::Status ByteStream::AwaitInput() const {
  constexpr int kMilliseconds = 100;
  pollfd wait = {descriptor_.fd(), POLLIN, 0};
  int ready;
  do {
    if (check_stop_) RETURN_IF_ERROR(check_stop_());
    ready = poll(&wait, 1, kMilliseconds);
  } while (ready == 0 || (ready < 0 && errno == EINTR));
  return absl::OkStatus();
}

absl::Status ByteStream::Fill() {
  size_t size = 0;
  while (size < buffer_.size() && !at_end_) {
    RETURN_IF_ERROR(AwaitInput());
    const ssize_t got =
        read(descriptor_.fd(), buffer_.data() + size, buffer_.size() - size);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return SystemError(errno, absl::StrCat("cannot read ", name_));
    at_end_ = got == 0;
    size += got;
  }
  input_ = {buffer_.data(), size};
  if (read_ == 0) {
    const Compression found = Detect(input_);
    if (compression_ == Compression::kDetect) compression_ = found;
    is_misnamed_ = compression_ != found;
    decoder_ = MakeDecoder(compression_);
    if (decoder_ != nullptr) output_.resize(kOutputBytes);
  }
  read_ += static_cast<int64_t>(size);
  return absl::OkStatus();
}

absl::StatusOr<absl::string_view> ByteStream::Next() {
  while (true) {
    if (decoder_ != nullptr) {
      const absl::StatusOr<size_t> size =
          decoder_->Decode(&input_, absl::MakeSpan(output_));
      if (!size.ok() && is_misnamed_) {
        const bool gzip = compression_ == Compression::kGzip;
        return absl::InvalidArgumentError(absl::StrCat(
            name_, ": does not begin like a ", gzip ? "gzip" : "zstd",
            " file; rename it if it is not compressed, or compress it again"));
      }
      if (!size.ok()) {
        return absl::DataLossError(
            absl::StrCat(name_, ", compressed byte ", read_ - input_.size(),
                         ": is damaged: ", size.status().message(),
                         "; copy or download it again"));
      }
      if (*size > 0) return absl::string_view(output_.data(), *size);
    } else if (!input_.empty()) {
      return std::exchange(input_, {});
    }
    if (!input_.empty()) continue;
    if (!at_end_) {
      RETURN_IF_ERROR(Fill());
      continue;
    }
    if (decoder_ == nullptr || decoder_->may_end()) return absl::string_view();
    return absl::DataLossError(absl::StrCat(
        name_, ": is truncated: the compressed data does not end in its ",
        read_, " bytes; copy or download it again"));
  }
}

}  // namespace tessera
