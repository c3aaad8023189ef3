#include "framework/dist/tcp.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

constexpr absl::Duration kRetryInterval = absl::Milliseconds(50);
// A machine that drops packets answers nothing; then its next address, or the
// same one again, is tried.
constexpr absl::Duration kLongestAttempt = absl::Seconds(3);

// 0, or the errno of connecting to `address` within `timeout`.
int TryConnect(const addrinfo& address, absl::Duration timeout) {
  const int fd = ::socket(address.ai_family,
                          SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  const absl::Cleanup close = [fd] { ::close(fd); };
  if (::connect(fd, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd writable = {.fd = fd, .events = POLLOUT};
  const int64_t ms = std::max<int64_t>(1, absl::ToInt64Milliseconds(timeout));
  if (::poll(&writable, 1, static_cast<int>(ms)) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

// Ok, or why no address of `host` accepts a connection.
absl::Status TryHost(const std::string& host, int port, absl::Time deadline) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* addresses = nullptr;
  const int error = ::getaddrinfo(host.c_str(), absl::StrCat(port).c_str(),
                                  &hints, &addresses);
  if (error != 0) return absl::DeadlineExceededError(::gai_strerror(error));
  const absl::Cleanup free = [addresses] { ::freeaddrinfo(addresses); };
  int reason = 0;
  for (const addrinfo* address = addresses; address != nullptr;
       address = address->ai_next) {
    reason =
        TryConnect(*address, std::min(kLongestAttempt, deadline - absl::Now()));
    if (reason == 0) return absl::OkStatus();
  }
  return absl::DeadlineExceededError(std::strerror(reason));
}

}  // namespace

absl::StatusOr<int> ListenOnLoopback(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot open a socket: ", std::strerror(errno)));
  }
  // A run that has just ended does not block the port.
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address),
             sizeof(address)) == 0 &&
      ::listen(fd, SOMAXCONN) == 0) {
    return fd;
  }
  const int error = errno;
  ::close(fd);
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot listen on 127.0.0.1:", port, ": ", std::strerror(error)));
}

absl::StatusOr<int> FreeLoopbackPort() {
  ASSIGN_OR_RETURN(const int fd, ListenOnLoopback(/*port=*/0));
  const absl::Cleanup close = [fd] { ::close(fd); };
  sockaddr_in address = {};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return absl::InternalError(
        absl::StrCat("getsockname failed: ", std::strerror(errno)));
  }
  return ntohs(address.sin_port);
}

absl::Status AwaitListener(const std::string& host, int port,
                           absl::Time deadline) {
  while (true) {
    const absl::Status tried = TryHost(host, port, deadline);
    if (tried.ok() || absl::Now() >= deadline) return tried;
    absl::SleepFor(kRetryInterval);
  }
}

}  // namespace tessera
