#ifndef FRAMEWORK_DIST_TCP_H_
#define FRAMEWORK_DIST_TCP_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera {

// A socket that listens on 127.0.0.1:`port` and nowhere else; port 0 lets the
// kernel choose. The caller closes it. FailedPrecondition when the port is
// taken.
absl::StatusOr<int> ListenOnLoopback(int port);

// A port of 127.0.0.1 that nobody listens on now. Another process may take it
// before the caller does, but the kernel hands out others first.
absl::StatusOr<int> FreeLoopbackPort();

// Returns once something accepts connections at host:port. DeadlineExceeded
// with the last reason why not.
absl::Status AwaitListener(const std::string& host, int port,
                           absl::Time deadline);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_TCP_H_
