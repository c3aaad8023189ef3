#ifndef FRAMEWORK_DIST_TCP_H_
#define FRAMEWORK_DIST_TCP_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "framework/base/file_descriptor.h"

namespace tessera {

using Socket = FileDescriptor;

// "gpu01:29500", "[fd00::2]:29500".
std::string HostAndPort(absl::string_view host, int port);

// The addresses of a socket's two ends, in the format of HostAndPort().
std::string LocalAddress(const Socket& socket);
std::string PeerAddress(const Socket& socket);

// Whether only this machine's processes can connect to a listening socket.
bool ListensOnLoopback(const Socket& socket);

// Sockets that listen on `port` at each address of `host` that belongs to this
// machine, and nowhere else. With port 0 the kernel chooses. `host` is a name
// or an IPv4 or IPv6 address. FailedPrecondition if the port is taken, or
// `host` is unknown or another machine.
absl::StatusOr<std::vector<Socket>> ListenAt(const std::string& host, int port);

// A socket that listens on every address of this machine, IPv4 and IPv6.
absl::StatusOr<Socket> ListenEverywhere(int port);

// A port of 127.0.0.1 that is free now. Another process may take it before the
// caller does, but the kernel hands out others first.
absl::StatusOr<int> FreeLoopbackPort();

// Tries each address of host:port once and connects to the first that accepts.
// The socket is non-blocking. DeadlineExceeded with the reason of the last
// failure.
absl::StatusOr<Socket> ConnectOnce(const std::string& host, int port,
                                   absl::Time deadline);

// Returns once something accepts connections at host:port. DeadlineExceeded
// with the reason of the last failure.
absl::Status AwaitListener(const std::string& host, int port,
                           absl::Time deadline);

// For non-blocking sockets. DeadlineExceeded after `timeout` without progress,
// not counting time while this process is suspended; Unavailable if the other
// end has closed the connection.
absl::Status SendAll(const Socket& socket, absl::string_view data,
                     absl::Duration timeout);
// Returns between 1 and `max_size` bytes.
absl::StatusOr<std::string> ReceiveSome(const Socket& socket, size_t max_size,
                                        absl::Duration timeout);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_TCP_H_
