#ifndef FRAMEWORK_DIST_HANG_WATCH_H_
#define FRAMEWORK_DIST_HANG_WATCH_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "framework/dist/key_value_store.h"
#include "framework/dist/progress.h"

namespace tessera {

// How long a rank may wait in one communication.
struct HangLimits {
  // Until two steps have begun; they compile and choose algorithms. The third
  // records the graph.
  absl::Duration first;
  // Afterwards 10 median steps, at least this.
  absl::Duration least;
};

// Decides when a rank has waited too long. Measures time in polls, so that a
// run that was suspended as a whole continues when it is resumed.
class HangClock {
 public:
  HangClock(const HangLimits& limits, absl::Duration interval)
      : limits_(limits), interval_(interval) {}

  // Called once per interval. True, at every call, if this rank has waited in a
  // communication for longer than limit().
  bool Poll(const RankProgress& progress);
  // Begins to measure the wait anew.
  void Restart() { silent_polls_ = 0; }

  absl::Duration waited() const { return silent_polls_ * interval_; }
  absl::Duration limit() const;

 private:
  const HangLimits limits_;
  const absl::Duration interval_;
  RankProgress last_;
  int64_t silent_polls_ = 0;
  int64_t polls_in_step_ = 0;
  std::deque<double> polls_per_step_;  // the latest
};

// One paragraph: which rank is missing in which operation of which step, where
// the others are, and what to do. `waited` is the time without progress.
std::string DescribeHang(const std::vector<RankProgress>& ranks,
                         absl::Duration waited);
// Whether `text` is such a paragraph.
bool IsHang(absl::string_view text);
// The ranks that have begun fewest communications; empty if all have begun the
// same number.
std::vector<int> MissingRanks(const std::vector<RankProgress>& ranks);

// Ends a run in which one rank does not take part in a communication for which
// the others wait. Each rank keeps its progress in the store; one that has
// waited too long reads that of all.
class HangWatch {
 public:
  // `progress` outlives this object.
  HangWatch(const Progress* progress, int rank, int world_size,
            const HangLimits& limits, absl::Duration interval)
      : progress_(*progress),
        rank_(rank),
        world_size_(world_size),
        clock_(limits, interval) {}

  // Called by the heartbeat in every interval; one request if this rank has
  // made progress. Returns why the run must end: DescribeHang(). Never if a
  // missing rank is excused. Fails if a request does.
  absl::StatusOr<std::optional<std::string>> Poll(KeyValueStore& store);

  // The folder for WriteReport(); empty, as at first: none.
  void SetFolder(absl::string_view folder);
  // Writes hang_rank_R.json with `why` and this rank's progress, if there is a
  // folder. Returns what to add to `why`: where the file is, or why there is
  // none.
  std::string WriteReport(absl::string_view why) const;

 private:
  // Reads the progress of all ranks from the store.
  absl::StatusOr<std::vector<RankProgress>> ReadAll(KeyValueStore& store) const;

  const Progress& progress_;
  const int rank_, world_size_;
  HangClock clock_;                   // used by Poll()
  std::optional<RankProgress> sent_;  // used by Poll()
  mutable absl::Mutex mutex_;
  std::string folder_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // FRAMEWORK_DIST_HANG_WATCH_H_
