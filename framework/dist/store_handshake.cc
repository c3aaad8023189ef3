#include "framework/dist/store_handshake.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/dist/secret.h"

namespace tessera {
namespace {

constexpr absl::string_view kProtocol = "tessera-store-1\n";
constexpr size_t kNonceSize = 32;
constexpr size_t kGreetingSize = kProtocol.size() + 1 + kNonceSize;
constexpr absl::string_view kAccepted = "y";
constexpr absl::string_view kRefused = "n";
// Of equal length, so that a message of one end is never valid for the other.
constexpr absl::string_view kClient = "client";
constexpr absl::string_view kServer = "server";

constexpr absl::string_view kPortHint =
    "if another program uses the port, set MASTER_PORT to a free one";

std::string Greeting(absl::string_view secret) {
  return absl::StrCat(kProtocol, secret.empty() ? "0" : "1",
                      RandomBytes(kNonceSize));
}

bool HasSecret(absl::string_view greeting) {
  return greeting[kProtocol.size()] == '1';
}

// Whether `bytes` is a prefix of a greeting or begins with one.
bool IsProtocol(absl::string_view bytes) {
  const size_t size = std::min(bytes.size(), kProtocol.size());
  return bytes.substr(0, size) == kProtocol.substr(0, size);
}

absl::Status Explain(const absl::Status& status) {
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(absl::StrCat(
        "something accepts connections there but does not answer as rank 0 "
        "does; ",
        kPortHint));
  }
  return absl::UnavailableError(absl::StrCat(
      "something accepts connections there but ends them before it answers as "
      "rank 0 does (",
      status.message(), "); ", kPortHint));
}

absl::Status NotTheStore(absl::string_view answer) {
  constexpr size_t kShown = 32;
  return absl::UnavailableError(absl::StrCat(
      "the program that answers there is not rank 0; it says '",
      absl::CHexEscape(answer.substr(0, kShown)), "'; ", kPortHint));
}

// Receives exactly `size` bytes; fails at the first byte that is not the
// protocol's.
absl::StatusOr<std::string> Receive(const Socket& socket, size_t size,
                                    absl::Time deadline) {
  std::string bytes;
  while (bytes.size() < size) {
    absl::StatusOr<std::string> some =
        ReceiveSome(socket, size - bytes.size(), deadline - MonotonicNow());
    if (!some.ok()) {
      return bytes.empty() ? Explain(some.status()) : NotTheStore(bytes);
    }
    bytes += *some;
    if (size == kGreetingSize && !IsProtocol(bytes)) return NotTheStore(bytes);
    if (bytes == kRefused) break;
  }
  return bytes;
}

absl::Status SecretsDiffer(absl::string_view how) {
  return absl::InvalidArgumentError(absl::StrCat(
      how, "; set TESSERA_SECRET to the same text for every rank"));
}

}  // namespace

absl::Status GreetStore(const Socket& socket, absl::string_view secret,
                        absl::Time deadline) {
  const std::string mine = Greeting(secret);
  const absl::Status sent = SendAll(socket, mine, deadline - MonotonicNow());
  if (!sent.ok()) return Explain(sent);
  ASSIGN_OR_RETURN(const std::string theirs,
                   Receive(socket, kGreetingSize, deadline));
  if (HasSecret(theirs) != HasSecret(mine)) {
    return SecretsDiffer(
        HasSecret(mine)
            ? "rank 0 has no TESSERA_SECRET, but this rank has one"
            : "rank 0 has a TESSERA_SECRET, but this rank has none");
  }
  const std::string greetings = mine + theirs;
  const absl::Status proved =
      SendAll(socket, Authenticator(secret, absl::StrCat(kClient, greetings)),
              deadline - MonotonicNow());
  if (!proved.ok()) return Explain(proved);
  ASSIGN_OR_RETURN(
      const std::string verdict,
      Receive(socket, kAccepted.size() + kAuthenticatorSize, deadline));
  if (absl::StartsWith(verdict, kAccepted) &&
      IsAuthenticator(verdict.substr(kAccepted.size()), secret,
                      absl::StrCat(kServer, greetings))) {
    return absl::OkStatus();
  }
  return SecretsDiffer("rank 0 has a different TESSERA_SECRET");
}

ClientGreeter::ClientGreeter(absl::string_view secret)
    : secret_(secret), greeting_(Greeting(secret)) {}

absl::StatusOr<bool> ClientGreeter::Advance(std::string& received,
                                            std::string& answers) {
  if (greetings_.empty()) {
    if (!IsProtocol(received)) {
      return absl::PermissionDeniedError("it is not a rank of a run");
    }
    if (received.size() < kGreetingSize) return false;
    greetings_ = received.substr(0, kGreetingSize) + greeting_;
    received.erase(0, kGreetingSize);
    answers += greeting_;
    if (HasSecret(greetings_) != HasSecret(greeting_)) {
      return absl::PermissionDeniedError(HasSecret(greetings_)
                                             ? "it has a TESSERA_SECRET"
                                             : "it has no TESSERA_SECRET");
    }
  }
  if (received.size() < kAuthenticatorSize) return false;
  const std::string proof = received.substr(0, kAuthenticatorSize);
  received.erase(0, kAuthenticatorSize);
  if (!IsAuthenticator(proof, secret_, absl::StrCat(kClient, greetings_))) {
    absl::StrAppend(&answers, kRefused);
    return absl::PermissionDeniedError("it has a different TESSERA_SECRET");
  }
  absl::StrAppend(&answers, kAccepted,
                  Authenticator(secret_, absl::StrCat(kServer, greetings_)));
  return true;
}

}  // namespace tessera
