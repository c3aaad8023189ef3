#include "framework/dist/store_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "framework/base/monotonic_clock.h"

namespace tessera {
namespace {

// More than a large run needs at one time. Limits the descriptors that
// strangers can use.
constexpr size_t kMostHandshakes = 256;
constexpr size_t kReceiveSize = 64 << 10;
constexpr absl::Duration kOutOfDescriptorsPause = absl::Milliseconds(50);

}  // namespace

StoreServer::StoreServer(std::vector<Socket> listeners, std::string secret)
    : listeners_(std::move(listeners)),
      secret_(std::move(secret)),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_(&StoreServer::Serve, this) {}

StoreServer::~StoreServer() {
  ::eventfd_write(stop_.fd(), 1);
  thread_.join();
}

absl::StatusOr<Fields> StoreServer::Call(const Fields& request) {
  const absl::MutexLock lock(&mutex_);
  return table_.Apply(request);
}

std::string StoreServer::Refusals() const {
  const absl::MutexLock lock(&mutex_);
  if (refused_ == 0) return "";
  return absl::StrCat(refused_,
                      refused_ == 1 ? " connection was refused, from "
                                    : " connections were refused, the last "
                                      "from ",
                      last_refusal_);
}

void StoreServer::Serve() {
  while (true) {
    std::vector<pollfd> fds = {{.fd = stop_.fd(), .events = POLLIN}};
    for (const Socket& listener : listeners_) {
      fds.push_back({.fd = listener.fd(), .events = POLLIN});
    }
    absl::Time wake = absl::InfiniteFuture();
    for (const Connection& connection : connections_) {
      // A client that does not read its answers cannot send more requests.
      const bool sending = !connection.answers.empty();
      fds.push_back(
          {.fd = connection.socket.fd(),
           .events = static_cast<int16_t>(sending ? POLLOUT : POLLIN)});
      if (!connection.accepted) wake = std::min(wake, connection.greeted_by);
    }
    const absl::Duration wait =
        std::max(absl::ZeroDuration(), wake - MonotonicNow());
    ::poll(fds.data(), fds.size(),
           wake == absl::InfiniteFuture()
               ? -1
               : static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1);
    if (fds[0].revents != 0) return;
    // Connections first, because accepting adds to them.
    size_t next = 1 + listeners_.size();
    for (Connection& connection : connections_) {
      const int16_t ready = fds[next++].revents;
      if ((ready & POLLOUT) != 0) Send(connection);
      if ((ready & (POLLIN | POLLHUP | POLLERR)) != 0) Receive(connection);
      if (!connection.accepted && !connection.closed &&
          MonotonicNow() >= connection.greeted_by) {
        const absl::MutexLock lock(&mutex_);
        Refuse(connection, "it did not answer as a rank does");
      }
    }
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (fds[1 + i].revents != 0) Accept(listeners_[i]);
    }
    connections_.remove_if([](const auto& each) { return each.closed; });
  }
}

void StoreServer::Accept(const Socket& listener) {
  Socket socket(
      ::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.fd() < 0) {
    if (errno == EMFILE || errno == ENFILE) {
      absl::SleepFor(kOutOfDescriptorsPause);
    }
    return;
  }
  const int on = 1;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const auto unknown = [](const Connection& each) { return !each.accepted; };
  const auto count =
      std::count_if(connections_.begin(), connections_.end(), unknown);
  if (static_cast<size_t>(count) >= kMostHandshakes) {
    const absl::MutexLock lock(&mutex_);
    Refuse(*std::find_if(connections_.begin(), connections_.end(), unknown),
           "too many other connections are waiting for their handshake");
  }
  connections_.emplace_back(std::move(socket), secret_);
}

void StoreServer::Receive(Connection& connection) {
  if (connection.closed) return;
  const absl::StatusOr<std::string> some =
      ReceiveSome(connection.socket, kReceiveSize, absl::ZeroDuration());
  if (absl::IsDeadlineExceeded(some.status())) return;  // no data after all
  if (!some.ok()) {
    connection.closed = true;
    return;
  }
  connection.received += *some;
  const absl::MutexLock lock(&mutex_);
  Answer(connection);
  Send(connection);
}

void StoreServer::Answer(Connection& connection) {
  if (!connection.accepted) {
    const absl::StatusOr<bool> accepted =
        connection.greeter.Advance(connection.received, connection.answers);
    if (!accepted.ok()) return Refuse(connection, accepted.status().message());
    connection.accepted = *accepted;
  }
  while (connection.accepted) {
    absl::StatusOr<absl::optional<Fields>> request =
        TakeFields(connection.received);
    if (!request.ok()) return Refuse(connection, request.status().message());
    if (!request->has_value()) return;
    const absl::StatusOr<Fields> answer = table_.Apply(**request);
    if (!answer.ok()) return Refuse(connection, answer.status().message());
    connection.answers += EncodeFields(*answer);
  }
}

void StoreServer::Send(Connection& connection) {
  if (connection.closed || connection.answers.empty()) return;
  const ssize_t sent = ::send(connection.socket.fd(), connection.answers.data(),
                              connection.answers.size(), MSG_NOSIGNAL);
  if (sent > 0) {
    connection.answers.erase(0, static_cast<size_t>(sent));
  } else if (errno != EAGAIN && errno != EINTR) {
    connection.closed = true;
  }
}

void StoreServer::Refuse(Connection& connection, absl::string_view why) {
  ++refused_;
  last_refusal_ = absl::StrCat(PeerAddress(connection.socket), ": ", why);
  Send(connection);  // the other end may understand the reason
  connection.closed = true;
}

}  // namespace tessera
