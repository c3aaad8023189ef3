#ifndef FRAMEWORK_DIST_HEARTBEAT_H_
#define FRAMEWORK_DIST_HEARTBEAT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace tessera {

// Notices that another rank of the run is gone while this one computes, or
// waits for a device that waits for that rank.
//
// Every interval a rank adds one to a counter of its own in the store. Rank 0
// watches all counters, the others watch that of rank 0, and all watch one key
// under which a failure is announced: 3 requests per rank, and one more for
// each rank from rank 0. Silence is counted in polls, not in seconds, so that a
// run which was suspended as a whole goes on when it is resumed.
class Heartbeat {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    absl::Duration interval = absl::Seconds(1);
    // A rank, or the store, that is silent for this long is lost.
    absl::Duration timeout;
  };

  // Beats from construction to Stop(). `on_lost` is called at most once, from a
  // thread of this object, with what was lost; it may end the process.
  Heartbeat(c10::intrusive_ptr<c10d::Store> store, const Options& options,
            std::function<void(absl::string_view)> on_lost);
  ~Heartbeat() { Stop(); }

  void Stop();

  // Tells the other ranks why they must end, unless they were told already;
  // they do so a little later than this one can. After Stop(). Rank 0 waits for
  // them to read it.
  void Announce(absl::string_view failure);

 private:
  struct Peer {
    int rank = 0;
    int64_t beats = -1;
    int64_t silent_polls = 0;
  };

  // The thread that talks to the store.
  void Beat();
  std::optional<std::string> PollOnce();
  std::optional<std::string> PollPeer(Peer& peer);
  // The thread that notices when the other one hangs in a request: the store
  // sets no time limit on them.
  void WatchBeat();

  // False once Stop() was called; waits for `duration` at most.
  bool SleepUnlessStopped(absl::Duration duration);
  void ReportOnce(absl::string_view lost);

  const c10::intrusive_ptr<c10d::Store> store_;
  const Options options_;
  const int64_t allowed_polls_;
  const std::function<void(absl::string_view)> on_lost_;
  std::vector<Peer> peers_;  // of the beating thread

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool reported_ ABSL_GUARDED_BY(mutex_) = false;
  bool beat_ended_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t polls_ ABSL_GUARDED_BY(mutex_) = 0;

  std::thread beat_;
  std::thread watch_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DIST_HEARTBEAT_H_
