#ifndef FRAMEWORK_DIST_STORE_HANDSHAKE_H_
#define FRAMEWORK_DIST_STORE_HANDSHAKE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "framework/dist/tcp.h"

namespace tessera {

// The handshake of a connection to the store of a run. It verifies that both
// ends speak the same protocol and know the same secret, which is empty if the
// run has none. The secret is never sent, and messages cannot be replayed:
//
//   client  greeting: protocol's name, whether it has a secret, 32 random bytes
//   server  greeting: the same fields
//   client  Authenticator(secret, "client" + both greetings)
//   server  "y" + Authenticator(secret, "server" + both greetings), or "n"

// Time limit of the handshake.
inline constexpr absl::Duration kHandshakeTimeout = absl::Seconds(5);

// The client's end, on a new connection. InvalidArgument if the secrets differ;
// DeadlineExceeded or Unavailable, with the reason, if the other end is not the
// store of a run.
absl::Status GreetStore(const Socket& socket, absl::string_view secret,
                        absl::Time deadline);

// The server's end.
class ClientGreeter {
 public:
  explicit ClientGreeter(absl::string_view secret);

  // Takes complete messages from `received` and appends answers to `answers`.
  // Returns true once the client is authenticated. PermissionDenied gives the
  // reason for a refusal ("it has no TESSERA_SECRET"); send `answers` in that
  // case, too.
  absl::StatusOr<bool> Advance(std::string& received, std::string& answers);

 private:
  const absl::string_view secret_;  // owned by the server, which outlives this
  const std::string greeting_;
  std::string greetings_;  // both ends', once the client's has arrived
};

}  // namespace tessera

#endif  // FRAMEWORK_DIST_STORE_HANDSHAKE_H_
