#ifndef TESTS_FRAMEWORK_DIST_FOREIGN_LISTENER_H_
#define TESTS_FRAMEWORK_DIST_FOREIGN_LISTENER_H_

#include <sys/types.h>

#include <string>

#include "absl/time/time.h"

namespace tessera {

// Another program at a port of 127.0.0.1 where a rank expects the store of its
// run. A separate process, so that tests may fork.
class ForeignListener {
 public:
  enum Behavior {
    kSilent,   // accepts, reads, never answers
    kRubbish,  // answers like a web server
    kCloses,   // accepts and closes
  };

  // Starts to listen at `port` (0: any free one) after `delay`.
  explicit ForeignListener(Behavior behavior, int port = 0,
                           absl::Duration delay = absl::ZeroDuration());
  ~ForeignListener();
  ForeignListener(const ForeignListener&) = delete;
  ForeignListener& operator=(const ForeignListener&) = delete;

  int port() const { return port_; }

 private:
  int port_;
  pid_t pid_;
};

}  // namespace tessera

#endif  // TESTS_FRAMEWORK_DIST_FOREIGN_LISTENER_H_
