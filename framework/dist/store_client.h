#ifndef FRAMEWORK_DIST_STORE_CLIENT_H_
#define FRAMEWORK_DIST_STORE_CLIENT_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "framework/dist/key_value_table.h"
#include "framework/dist/tcp.h"

namespace tessera {

// A connection to a StoreServer. Thread-safe: requests take turns, and no
// request waits for another rank.
class StoreClient {
 public:
  // Retries until a server that knows `secret` answers at host:port.
  // InvalidArgument if the server has a different secret; DeadlineExceeded with
  // the reason of the last failure.
  static absl::StatusOr<std::unique_ptr<StoreClient>> Connect(
      const std::string& host, int port, absl::string_view secret,
      absl::Time deadline);

  // Sends a request (see KeyValueTable) and returns the answer.
  // DeadlineExceeded if the server does not answer within `timeout`,
  // Unavailable if it has ended; both end the connection.
  absl::StatusOr<Fields> Call(const Fields& request, absl::Duration timeout);

 private:
  explicit StoreClient(Socket socket) : socket_(std::move(socket)) {}
  absl::StatusOr<Fields> Exchange(const Fields& request, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  Socket socket_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // FRAMEWORK_DIST_STORE_CLIENT_H_
