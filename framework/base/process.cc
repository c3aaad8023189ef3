#include "framework/base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/status/status.h"
#include "framework/base/exit_code.h"
#include "framework/base/log.h"
#include "framework/base/system_error.h"

namespace tessera {
namespace {

// Flushes `file`. Also reports an error of earlier writes to it.
absl::Status Flush(std::FILE* file) {
  errno = 0;
  while (std::fflush(file) != 0 && errno == EAGAIN) {
    // Another program on the terminal made it non-blocking.
    std::clearerr(file);
    pollfd writable = {.fd = ::fileno(file), .events = POLLOUT, .revents = 0};
    ::poll(&writable, 1, /*timeout=*/-1);
    errno = 0;
  }
  if (std::ferror(file) == 0) return absl::OkStatus();
  if (errno == 0) {
    // An earlier write failed and its reason is gone: another has the same.
    std::fputc('\n', file);
    std::fflush(file);
  }
  return SystemError(errno != 0 ? errno : EIO,
                     file == stdout   ? "cannot write to stdout"
                     : file == stderr ? "cannot write to stderr"
                                      : "cannot write");
}

// Some file systems report a failed write only when a descriptor is closed.
absl::Status CloseCopyOfStdout() {
  const int copy = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
  if (copy < 0 || ::close(copy) == 0) return absl::OkStatus();
  return SystemError(errno, "cannot write to stdout");
}

// A user error, whatever the system's reason: a closed pipe does not mean that
// another process of the run is gone.
absl::Status CannotPrint(const absl::Status& status) {
  return absl::FailedPreconditionError(status.message());
}

void CheckStdout(int exit_code, void*) {
  absl::Status status = Flush(stdout);
  if (status.ok()) status = CloseCopyOfStdout();
  if (status.ok()) return;
  LogError(status.message());
  if (exit_code == 0) ::_exit(ExitCode(CannotPrint(status)));
}

// Drops what `file` could not write, and the error.
void Clear(std::FILE* file) {
  ::__fpurge(file);
  std::clearerr(file);
}

void OpenClosedDescriptors() {
  // The modes are swapped on purpose, so that writing or reading still fails.
  constexpr int kModes[] = {O_WRONLY, O_RDONLY, O_RDONLY};
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // open() returns the lowest free descriptor, which is `fd`.
    if (::open("/dev/null", kModes[fd]) != fd) {
      ::_exit(ReportAndExitCode(absl::FailedPreconditionError(
          "stdin, stdout or stderr is closed, and /dev/null cannot be opened "
          "in its place; start the program with all three open")));
    }
  }
}

}  // namespace

void PrepareProcess() {
  OpenClosedDescriptors();
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  // Unlike a check at the end of main(), this also covers exit(), which the
  // flags library calls after --version.
  ::on_exit(CheckStdout, nullptr);
}

absl::Status FlushResult(std::FILE* file) {
  const absl::Status status = Flush(file);
  if (status.ok()) return status;
  Clear(file);
  return CannotPrint(status);
}

void FlushConsole(std::FILE* console) {
  const absl::Status status = Flush(console);
  if (status.ok()) return;
  LogWarning(std::string(status.message()) +
             "; the run continues without this output");
  Clear(console);
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (null < 0) return;  // then every line fails again
  ::dup2(null, ::fileno(console));
  ::close(null);
}

}  // namespace tessera
