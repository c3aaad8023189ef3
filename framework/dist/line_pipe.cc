#include "framework/dist/line_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "framework/base/process.h"
#include "framework/base/system_error.h"

namespace tessera {
namespace {

// Longer lines are forwarded in parts.
constexpr size_t kLongestLine = 64 * 1024;

}  // namespace

absl::StatusOr<std::unique_ptr<LinePipe>> LinePipe::Create(
    absl::string_view label, std::FILE* file, OutputKind kind) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    return SystemError(errno, "cannot open a pipe");
  }
  ::fcntl(fds[0], F_SETFL, O_NONBLOCK);
  return absl::WrapUnique(new LinePipe(label, file, kind, fds[0], fds[1]));
}

void LinePipe::BecomeInChild(int fd) const { ::dup2(write_end_.fd(), fd); }

void LinePipe::Drain() {
  char buffer[4096];
  while (open()) {
    const ssize_t size = ::read(read_end_.fd(), buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) break;
    if (size <= 0) {
      read_end_.Close();
      if (!partial_line_.empty()) Pass("\n");
      break;
    }
    Pass(absl::string_view(buffer, static_cast<size_t>(size)));
  }
  if (kind_ == OutputKind::kConsole) {
    FlushConsole(file_);
  } else {
    status_.Update(FlushResult(file_));
  }
}

void LinePipe::Pass(absl::string_view text) {
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    absl::StrAppend(&partial_line_, text.substr(0, newline));
    if (newline == absl::string_view::npos) break;
    Print(partial_line_);
    partial_line_.clear();
    text.remove_prefix(newline + 1);
  }
  if (partial_line_.size() > kLongestLine) {
    Print(partial_line_);
    partial_line_.clear();
  }
}

void LinePipe::Print(absl::string_view line) {
  const std::string whole = absl::StrCat(label_, line, "\n");
  std::fwrite(whole.data(), 1, whole.size(), file_);
}

}  // namespace tessera
