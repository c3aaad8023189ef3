#include "framework/dist/tcp.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

constexpr absl::Duration kRetryInterval = absl::Milliseconds(50);
// A machine that drops packets never answers. After this time, tries its next
// address, or the same one again.
constexpr absl::Duration kLongestAttempt = absl::Seconds(3);
// While this process is suspended, at most one slice is counted.
constexpr absl::Duration kPollSlice = absl::Seconds(1);

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* addresses = nullptr;
  const int error = ::getaddrinfo(host.c_str(), absl::StrCat(port).c_str(),
                                  &hints, &addresses);
  if (error != 0) return absl::DeadlineExceededError(::gai_strerror(error));
  return Addresses(addresses, &::freeaddrinfo);
}

// An address without its port: "10.0.0.7", "fd00::2".
std::string HostOf(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET,
                &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
                sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    ::inet_ntop(AF_INET6,
                &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr,
                text, sizeof(text));
  }
  return text;
}

int PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// getsockname() or getpeername().
using NameOfEnd = int (*)(int, sockaddr*, socklen_t*);
sockaddr_storage EndOf(const Socket& socket, NameOfEnd name_of_end) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  name_of_end(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size);
  return address;
}

std::string Describe(const sockaddr_storage& address) {
  return HostAndPort(HostOf(reinterpret_cast<const sockaddr*>(&address)),
                     PortOf(address));
}

// Returns 0 or an errno.
int Listen(const Socket& socket, const sockaddr* address, socklen_t size,
           bool only_ipv6) {
  if (socket.fd() < 0) return errno;
  // A port of a run that has just ended can be reused.
  const int on = 1;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address->sa_family == AF_INET6) {
    const int only = only_ipv6 ? 1 : 0;
    ::setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
  }
  if (::bind(socket.fd(), address, size) != 0) return errno;
  return ::listen(socket.fd(), SOMAXCONN) == 0 ? 0 : errno;
}

Socket Open(int family) {
  return Socket(
      ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

absl::Status CannotListen(const std::string& where, int error) {
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot listen on ", where, ": ", std::strerror(error),
      error == EADDRINUSE ? "; set MASTER_PORT of every rank to a free port"
                          : ""));
}

// Whether the kernel reports that an address is not this machine's.
bool IsForeign(int error) {
  return error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
}

std::string AddressesOfThisMachine() {
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) return "unknown";
  const absl::Cleanup free = [interfaces] { ::freeifaddrs(interfaces); };
  std::vector<std::string> hosts;
  for (const ifaddrs* i = interfaces; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    const int family = i->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) {
      hosts.push_back(HostOf(i->ifa_addr));
    }
  }
  return absl::StrJoin(hosts, ", ");
}

absl::StatusOr<Socket> TryConnect(const addrinfo& address,
                                  absl::Duration timeout) {
  Socket socket = Open(address.ai_family);
  const auto failed = [](int error) {
    return absl::DeadlineExceededError(std::strerror(error));
  };
  if (socket.fd() < 0) return failed(errno);
  // Requests are small, and each waits for its answer.
  const int on = 1;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (::connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0) {
    return socket;
  }
  if (errno != EINPROGRESS) return failed(errno);
  pollfd writable = {.fd = socket.fd(), .events = POLLOUT};
  const int64_t ms = std::max<int64_t>(1, absl::ToInt64Milliseconds(timeout));
  if (::poll(&writable, 1, static_cast<int>(ms)) <= 0) return failed(ETIMEDOUT);
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return failed(error);
  return socket;
}

// Waits for `events`.
absl::Status Await(const Socket& socket, int16_t events,
                   absl::Duration timeout) {
  while (true) {
    const absl::Duration slice = std::min(timeout, kPollSlice);
    pollfd fd = {.fd = socket.fd(), .events = events};
    const int ready = ::poll(&fd, 1,
                             static_cast<int>(std::max<int64_t>(
                                 0, absl::ToInt64Milliseconds(slice))));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno == EINTR) continue;
    timeout -= slice;
    if (timeout <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError("no answer");
    }
  }
}

absl::Status ConnectionLost(int error) {
  return absl::UnavailableError(error == 0 ? "the connection was closed"
                                           : std::strerror(error));
}

}  // namespace

std::string HostAndPort(absl::string_view host, int port) {
  const bool ipv6 = host.find(':') != absl::string_view::npos;
  return ipv6 ? absl::StrCat("[", host, "]:", port)
              : absl::StrCat(host, ":", port);
}

std::string LocalAddress(const Socket& socket) {
  return Describe(EndOf(socket, ::getsockname));
}

std::string PeerAddress(const Socket& socket) {
  return Describe(EndOf(socket, ::getpeername));
}

bool ListensOnLoopback(const Socket& socket) {
  const sockaddr_storage local = EndOf(socket, ::getsockname);
  if (local.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(
        &reinterpret_cast<const sockaddr_in6&>(local).sin6_addr);
  }
  constexpr uint32_t kLoopbackNet = 127;
  return ntohl(reinterpret_cast<const sockaddr_in&>(local).sin_addr.s_addr) >>
             24 ==
         kLoopbackNet;
}

absl::StatusOr<std::vector<Socket>> ListenAt(const std::string& host,
                                             int port) {
  const absl::StatusOr<Addresses> addresses = Resolve(host, port);
  if (!addresses.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot listen at ", host, ": ", addresses.status().message(),
        "; give the name or an address of this machine, which "
        "has ",
        AddressesOfThisMachine()));
  }
  std::vector<Socket> sockets;
  std::vector<std::string> foreign;
  absl::flat_hash_set<std::string> seen;  // /etc/hosts may repeat addresses
  for (const addrinfo* address = addresses->get(); address != nullptr;
       address = address->ai_next) {
    if (!seen.insert(HostOf(address->ai_addr)).second) continue;
    Socket socket = Open(address->ai_family);
    const int error =
        Listen(socket, address->ai_addr, address->ai_addrlen, true);
    if (error == 0) {
      sockets.push_back(std::move(socket));
    } else if (IsForeign(error)) {
      foreign.push_back(HostOf(address->ai_addr));
    } else {
      return CannotListen(HostAndPort(HostOf(address->ai_addr), port), error);
    }
  }
  if (!sockets.empty()) return sockets;
  const std::string resolved = absl::StrJoin(foreign, ", ");
  return absl::FailedPreconditionError(
      absl::StrCat("cannot listen at ", host,
                   resolved == host ? "" : absl::StrCat(" (", resolved, ")"),
                   ", which is not an address of this machine; it has ",
                   AddressesOfThisMachine()));
}

absl::StatusOr<Socket> ListenEverywhere(int port) {
  sockaddr_in6 ipv6 = {};
  ipv6.sin6_family = AF_INET6;
  ipv6.sin6_port = htons(static_cast<uint16_t>(port));
  Socket socket = Open(AF_INET6);
  int error = Listen(socket, reinterpret_cast<const sockaddr*>(&ipv6),
                     sizeof(ipv6), false);
  if (IsForeign(error)) {  // a kernel without IPv6
    sockaddr_in ipv4 = {};
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = ipv6.sin6_port;
    socket = Open(AF_INET);
    error = Listen(socket, reinterpret_cast<const sockaddr*>(&ipv4),
                   sizeof(ipv4), false);
  }
  if (error != 0) return CannotListen(absl::StrCat("*:", port), error);
  return socket;
}

absl::StatusOr<int> FreeLoopbackPort() {
  ASSIGN_OR_RETURN(const std::vector<Socket> sockets,
                   ListenAt("127.0.0.1", /*port=*/0));
  return PortOf(EndOf(sockets[0], ::getsockname));
}

absl::StatusOr<Socket> ConnectOnce(const std::string& host, int port,
                                   absl::Time deadline) {
  ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host, port));
  absl::StatusOr<Socket> socket = absl::DeadlineExceededError("no address");
  for (const addrinfo* address = addresses.get();
       address != nullptr && !socket.ok(); address = address->ai_next) {
    socket = TryConnect(*address,
                        std::min(kLongestAttempt, deadline - MonotonicNow()));
  }
  return socket;
}

absl::Status AwaitListener(const std::string& host, int port,
                           absl::Time deadline) {
  while (true) {
    const absl::Status tried = ConnectOnce(host, port, deadline).status();
    if (tried.ok() || MonotonicNow() >= deadline) return tried;
    absl::SleepFor(kRetryInterval);
  }
}

absl::Status SendAll(const Socket& socket, absl::string_view data,
                     absl::Duration timeout) {
  while (!data.empty()) {
    const ssize_t sent =
        ::send(socket.fd(), data.data(), data.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      data.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(Await(socket, POLLOUT, timeout));
    } else if (errno != EINTR) {
      return ConnectionLost(errno);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReceiveSome(const Socket& socket, size_t max_size,
                                        absl::Duration timeout) {
  std::string data(max_size, '\0');
  while (true) {
    const ssize_t received = ::recv(socket.fd(), data.data(), data.size(), 0);
    if (received > 0) {
      data.resize(static_cast<size_t>(received));
      return data;
    }
    if (received == 0) return ConnectionLost(0);
    if (errno == EAGAIN) {
      RETURN_IF_ERROR(Await(socket, POLLIN, timeout));
    } else if (errno != EINTR) {
      return ConnectionLost(errno);
    }
  }
}

}  // namespace tessera
