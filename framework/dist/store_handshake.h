#ifndef FRAMEWORK_DIST_STORE_HANDSHAKE_H_
#define FRAMEWORK_DIST_STORE_HANDSHAKE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "framework/dist/tcp.h"

namespace tessera {

// How the two ends of a connection to the store of a run find out that they
// speak the same protocol and know the same secret, which is empty if the run
// has none. Neither end sends the secret, and no message can be used again:
//
//   client  greeting: protocol's name, whether it has a secret, 32 random bytes
//   server  greeting: the same fields
//   client  Authenticator(secret, "client" + both greetings)
//   server  "y" + Authenticator(secret, "server" + both greetings), or "n"

// The longest time for all of it.
inline constexpr absl::Duration kHandshakeTimeout = absl::Seconds(5);

// The client's end, on a new connection.
// InvalidArgument if the two secrets differ; DeadlineExceeded or Unavailable,
// with the reason in words, if the other end is not the store of a run.
absl::Status GreetStore(const Socket& socket, absl::string_view secret,
                        absl::Time deadline);

// The server's end: what it does with the bytes that have arrived.
class ClientGreeter {
 public:
  explicit ClientGreeter(absl::string_view secret);

  // Takes complete messages from `received` and appends the answers to
  // `answers`. True once the client has proved itself; PermissionDenied says
  // why it is refused ("it has no TESSERA_SECRET"), after `answers` is sent.
  absl::StatusOr<bool> Advance(std::string& received, std::string& answers);

 private:
  const absl::string_view secret_;  // of the server, which outlives this
  const std::string greeting_;
  std::string greetings_;  // both, once the client's has arrived
};

}  // namespace tessera

#endif  // FRAMEWORK_DIST_STORE_HANDSHAKE_H_
