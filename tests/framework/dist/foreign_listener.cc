#include "tests/framework/dist/foreign_listener.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "absl/time/clock.h"
#include "framework/base/monotonic_clock.h"
#include "framework/dist/tcp.h"

namespace tessera {
namespace {

[[noreturn]] void Serve(ForeignListener::Behavior behavior, int port,
                        absl::Duration delay) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  absl::SleepFor(delay);
  const absl::StatusOr<std::vector<Socket>> listeners =
      ListenAt("127.0.0.1", port);
  if (!listeners.ok()) ::_exit(1);
  std::vector<Socket> kept;
  while (true) {
    Socket accepted(::accept((*listeners)[0].fd(), nullptr, nullptr));
    if (accepted.fd() < 0) {
      absl::SleepFor(absl::Milliseconds(5));  // the socket is non-blocking
      continue;
    }
    if (behavior == ForeignListener::kCloses) continue;
    if (behavior == ForeignListener::kRubbish) {
      SendAll(accepted, "HTTP/1.1 400 Bad Request\r\n\r\n", absl::Seconds(1))
          .IgnoreError();
    }
    kept.push_back(std::move(accepted));
  }
}

}  // namespace

ForeignListener::ForeignListener(Behavior behavior, int port,
                                 absl::Duration delay)
    : port_(port != 0 ? port : FreeLoopbackPort().value()), pid_(::fork()) {
  if (pid_ == 0) Serve(behavior, port_, delay);
  // Waits until it listens.
  if (delay == absl::ZeroDuration()) {
    AwaitListener("127.0.0.1", port_, MonotonicNow() + absl::Seconds(5))
        .IgnoreError();
  }
}

ForeignListener::~ForeignListener() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace tessera
