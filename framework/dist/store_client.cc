#include "framework/dist/store_client.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/dist/store_handshake.h"

namespace tessera {
namespace {

// Time between attempts while nobody, or another program, listens.
constexpr absl::Duration kRetryInterval = absl::Milliseconds(50);
constexpr absl::Duration kForeignRetryInterval = absl::Seconds(1);
constexpr size_t kReceiveSize = 64 << 10;

}  // namespace

absl::StatusOr<std::unique_ptr<StoreClient>> StoreClient::Connect(
    const std::string& host, int port, absl::string_view secret,
    absl::Time deadline) {
  while (true) {
    absl::StatusOr<Socket> socket = ConnectOnce(host, port, deadline);
    absl::Status failed = socket.status();
    absl::Duration pause = kRetryInterval;
    if (socket.ok()) {
      failed =
          GreetStore(*socket, secret,
                     std::min(deadline, MonotonicNow() + kHandshakeTimeout));
      if (failed.ok()) {
        return std::unique_ptr<StoreClient>(
            new StoreClient(*std::move(socket)));
      }
      if (absl::IsInvalidArgument(failed)) return failed;
      pause = kForeignRetryInterval;
    }
    if (MonotonicNow() + pause >= deadline) {
      return absl::DeadlineExceededError(failed.message());
    }
    absl::SleepFor(pause);
  }
}

absl::StatusOr<Fields> StoreClient::Call(const Fields& request,
                                         absl::Duration timeout) {
  const absl::MutexLock lock(&mutex_);
  if (socket_.fd() < 0) {
    return absl::UnavailableError("the connection was closed");
  }
  absl::StatusOr<Fields> answer = Exchange(request, timeout);
  // Otherwise a late answer could be taken for that of the next request.
  if (!answer.ok()) socket_ = Socket();
  return answer;
}

absl::StatusOr<Fields> StoreClient::Exchange(const Fields& request,
                                             absl::Duration timeout) {
  RETURN_IF_ERROR(SendAll(socket_, EncodeFields(request), timeout));
  std::string received;
  while (true) {
    ASSIGN_OR_RETURN(const std::string some,
                     ReceiveSome(socket_, kReceiveSize, timeout));
    received += some;
    ASSIGN_OR_RETURN(absl::optional<Fields> answer, TakeFields(received));
    if (answer.has_value()) return *std::move(answer);
  }
}

}  // namespace tessera
