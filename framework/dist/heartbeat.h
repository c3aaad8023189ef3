#ifndef FRAMEWORK_DIST_HEARTBEAT_H_
#define FRAMEWORK_DIST_HEARTBEAT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "framework/dist/key_value_store.h"

namespace tessera {

// Detects that another rank of the run has ended while this rank computes or
// waits for a device.
//
// In every interval a rank increments its own counter in the store. Rank 0
// watches all counters, the others watch rank 0's, and all watch a key for
// announced failures: 3 requests per rank, one more per rank from rank 0, and
// those of Options::poll.
// Silence is counted in polls and not in seconds, so that a run that was
// suspended as a whole continues when it is resumed.
class Heartbeat {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    absl::Duration interval = absl::Seconds(1);
    // A rank or a store that is silent for this long counts as lost.
    absl::Duration timeout;
    // Called in every interval, if set. Returns why all ranks must end, which
    // is announced to them.
    std::function<absl::StatusOr<std::optional<std::string>>(KeyValueStore&)>
        poll;
  };

  // Sends heartbeats from construction to Stop(). `on_lost` is called at most
  // once, from a thread of this object, with what was lost. It may end the
  // process.
  Heartbeat(std::shared_ptr<KeyValueStore> store, const Options& options,
            std::function<void(absl::string_view)> on_lost);
  ~Heartbeat() { Stop(); }

  void Stop();

  // Announces to the other ranks why they must end, unless they already know;
  // they end a little later than this rank can. Call this after Stop(). Rank 0
  // waits until they have read it.
  void Announce(absl::string_view failure);

  // Call this when the backend reports that a rank is gone. If a failure of the
  // run is known that says more, gives `on_lost` the time to report it.
  void AwaitReport();

 private:
  struct Peer {
    int rank = 0;
    int64_t beats = -1;
    int64_t silent_polls = 0;
  };

  // Thread that sends requests to the store.
  void Beat();
  absl::StatusOr<std::optional<std::string>> PollOnce();
  absl::StatusOr<std::optional<std::string>> PollPeer(Peer& peer);
  // Thread that detects when Beat() hangs in a request, which has no time
  // limit.
  void WatchBeat();

  // Waits for `duration`; returns false as soon as Stop() has been called.
  bool SleepUnlessStopped(absl::Duration duration);
  void NoteFailure();
  void ReportOnce(absl::string_view lost);

  const std::shared_ptr<KeyValueStore> store_;
  const Options options_;
  const int64_t allowed_polls_;
  const std::function<void(absl::string_view)> on_lost_;
  std::vector<Peer> peers_;  // used by Beat()

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool knows_failure_ ABSL_GUARDED_BY(mutex_) = false;  // reports it soon
  bool reported_ ABSL_GUARDED_BY(mutex_) = false;
  bool beat_ended_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t polls_ ABSL_GUARDED_BY(mutex_) = 0;

  std::thread beat_;
  std::thread watch_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DIST_HEARTBEAT_H_
