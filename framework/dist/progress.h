#ifndef FRAMEWORK_DIST_PROGRESS_H_
#define FRAMEWORK_DIST_PROGRESS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace tessera {

// How far a rank is in the sequence of the run's communications, which is the
// same on every rank.
struct RankProgress {
  int64_t begun = 0, ended = 0;        // communications since the start
  std::string begun_name, ended_name;  // of the last ones; empty: none
  int64_t step = 0;                    // 0: before the first
  // What the host does outside of a step: "writes a checkpoint".
  std::string host;
  bool excused = false;  // others wait for `host`, however long it takes
  std::string process;   // "process 4711 on gpu01"

  bool operator==(const RankProgress&) const = default;
};

// As JSON, and back; an empty RankProgress for any other text.
std::string PrintProgress(const RankProgress& progress);
RankProgress ParseProgress(absl::string_view text);

// Counts this rank's communications. Begin() and End() count when the work
// before them on the current stream is done. On a CPU that is at once.
// Another thread may call Now(). A communication that is recorded in a CUDA
// graph counts in each step that launches the graph, before those that are in
// no graph.
class Progress {
 public:
  // Constants, which a graph repeats at each launch: numbers within the step
  // and, as the step begins, the number of all communications before it.
  enum Word { kEnded, kBegun, kBefore, kStep, kWords };

  // Writes in place of the host, once a device has done its earlier work.
  class Writer {
   public:
    virtual ~Writer() = default;
    // kWords in host memory, all 0 at first, which are never freed.
    virtual int64_t* words() = 0;
    // Writes `values` to the words from `first` on.
    virtual void Write(Word first, absl::Span<const int64_t> values) = 0;
    // Whether that is now being recorded in a graph.
    virtual bool records() const = 0;
  };

  Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // From now on counts what is enqueued on the writer's device, not on the
  // host, and from 0. The functions below then throw what the writer throws.
  // Writes once; if that throws, the host still counts.
  void CountOn(std::unique_ptr<Writer> writer);
  void Begin(absl::string_view name);
  // Ends the communication that has begun last.
  void End() { Write(kEnded, {last_}); }
  // The current stream's work from now on belongs to `step`.
  void SetStep(int64_t step);
  // RankProgress::host and excused. Returns the host's work before.
  std::string SetHost(absl::string_view host, bool excused);

  // Does not wait for the device.
  RankProgress Now() const;

 private:
  // The lower bits of a number say which name.
  static constexpr int kNameBits = 16;
  static constexpr int64_t kNames = int64_t{1} << kNameBits;

  void Write(Word first, absl::Span<const int64_t> values);
  // The number of `name`; 0 if there are too many.
  int64_t NumberOf(absl::string_view name);

  std::unique_ptr<Writer> writer_;  // null: the host writes
  // Numbers of communications: before this step; in it until now; in the graph
  // that it records; in any graph.
  int64_t before_ = 0, in_step_ = 0, recorded_now_ = 0, recorded_ = 0;
  int64_t last_ = 0;  // the word of what has begun last
  std::array<int64_t, kWords> host_words_ = {};
  int64_t* words_ = host_words_.data();
  mutable absl::Mutex mutex_;  // also for words_, between CountOn() and Now()
  std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_) = {"a communication"};
  std::map<std::string, int64_t, std::less<>> numbers_ ABSL_GUARDED_BY(mutex_);
  std::string host_ ABSL_GUARDED_BY(mutex_);
  bool excused_ ABSL_GUARDED_BY(mutex_) = false;
  const std::string process_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DIST_PROGRESS_H_
