#ifndef FRAMEWORK_DIST_STORE_SERVER_H_
#define FRAMEWORK_DIST_STORE_SERVER_H_

#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "framework/base/monotonic_clock.h"
#include "framework/dist/key_value_table.h"
#include "framework/dist/store_handshake.h"
#include "framework/dist/tcp.h"

namespace tessera {

// Serves a KeyValueTable to the ranks of a run, from its own thread, until it
// is destroyed. Connections that fail the handshake (store_handshake.h) are
// closed and never delay the others.
class StoreServer {
 public:
  StoreServer(std::vector<Socket> listeners, std::string secret);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Applies a request from this process, without a connection. Thread-safe. All
  // earlier requests of other ranks have been answered before, so rank 0 may
  // end once the table shows that the others are done.
  absl::StatusOr<Fields> Call(const Fields& request);

  // "2 connections were refused, the last from 10.0.0.7:40312: it has no
  // TESSERA_SECRET"; empty if none was.
  std::string Refusals() const;

 private:
  struct Connection {
    Connection(Socket socket, absl::string_view secret)
        : socket(std::move(socket)), greeter(secret) {}
    Socket socket;
    ClientGreeter greeter;
    absl::Time greeted_by = MonotonicNow() + kHandshakeTimeout;
    bool accepted = false;
    bool closed = false;
    std::string received;
    std::string answers;  // not yet sent
  };

  void Serve();
  void Accept(const Socket& listener);
  void Receive(Connection& connection);
  void Answer(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(Connection& connection);
  void Refuse(Connection& connection, absl::string_view why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<Socket> listeners_;
  const std::string secret_;
  const Socket stop_;                  // eventfd
  std::list<Connection> connections_;  // used by the thread; oldest first

  mutable absl::Mutex mutex_;
  KeyValueTable table_ ABSL_GUARDED_BY(mutex_);
  int refused_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string last_refusal_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DIST_STORE_SERVER_H_
