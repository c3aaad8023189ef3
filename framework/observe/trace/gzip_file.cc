#include "framework/observe/trace/gzip_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "framework/base/check.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"

namespace tessera {

struct GzipFile::Stream {
  z_stream state = {};
  std::array<char, size_t{64} << 10> output;
};

absl::StatusOr<std::unique_ptr<GzipFile>> GzipFile::Create(
    const std::string& path) {
  std::string target = LinkTarget(path);  // a symbolic link stays
  struct stat info;
  const bool in_place =
      ::stat(target.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
  std::string written = in_place ? target : target + ".tmp";
  const int descriptor =
      ::open(written.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    return SystemError(errno, absl::StrCat("cannot create ", path));
  }
  return absl::WrapUnique(
      new GzipFile(std::move(target), std::move(written), descriptor));
}

GzipFile::GzipFile(std::string path, std::string written, int descriptor)
    : path_(std::move(path)),
      written_(std::move(written)),
      descriptor_(descriptor),
      stream_(std::make_unique<Stream>()) {
  // Level 1: traces are repetitive, and are written while a run waits.
  constexpr int kLevel = 1, kGzip = 16, kWindowBits = 15, kMemLevel = 8;
  TESSERA_CHECK(
      deflateInit2(&stream_->state, kLevel, Z_DEFLATED, kWindowBits + kGzip,
                   kMemLevel, Z_DEFAULT_STRATEGY) == Z_OK,
      "zlib refuses to start");
}

GzipFile::~GzipFile() {
  deflateEnd(&stream_->state);
  if (descriptor_.is_open() && written_ != path_) ::unlink(written_.c_str());
}

absl::Status GzipFile::Write(absl::string_view text) {
  return Deflate(text, /*last=*/false);
}

absl::Status GzipFile::Deflate(absl::string_view text, bool last) {
  z_stream& state = stream_->state;
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = static_cast<uInt>(text.size());
  do {
    state.next_out = reinterpret_cast<Bytef*>(stream_->output.data());
    state.avail_out = static_cast<uInt>(stream_->output.size());
    deflate(&state, last ? Z_FINISH : Z_NO_FLUSH);
    const size_t size = stream_->output.size() - state.avail_out;
    RETURN_IF_ERROR(
        WriteAll(descriptor_.fd(), {stream_->output.data(), size}, path_));
  } while (state.avail_out == 0);
  return absl::OkStatus();
}

absl::Status GzipFile::Close() {
  RETURN_IF_ERROR(Deflate("", /*last=*/true));
  const bool in_place = written_ == path_;
  // Some file systems report a failed write only here.
  if (descriptor_.Close() == 0 &&
      (in_place || ::rename(written_.c_str(), path_.c_str()) == 0)) {
    return absl::OkStatus();
  }
  const int error = errno;
  if (!in_place) ::unlink(written_.c_str());
  return SystemError(error, absl::StrCat("cannot write ", path_));
}

}  // namespace tessera
