#ifndef FRAMEWORK_DIST_PROGRESS_H_
#define FRAMEWORK_DIST_PROGRESS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "c10/core/Device.h"

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
  Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // From now on counts what is enqueued on `gpu`, not on the host, and from 0.
  // This and the functions below throw LibTorch's exceptions.
  void CountOn(c10::Device gpu);
  void Begin(absl::string_view name);
  // Of the last one that has begun.
  void End();
  // The current stream's work from now on belongs to `step`.
  void SetStep(int64_t step);
  // RankProgress::host and excused. Returns the host's work before.
  std::string SetHost(absl::string_view host, bool excused);

  // Does not wait for the device.
  RankProgress Now() const;

 private:
  // A GPU writes constants, which a graph repeats at each launch: the number
  // within the step and, as the step begins, the number of all before it.
  enum Word { kEnded, kBegun, kBefore, kStep, kWords };
  // The lower bits of a number say which name.
  static constexpr int kNameBits = 16;

  // Writes `values` to the words from `first` on.
  void Write(Word first, absl::Span<const int64_t> values);
  // The number of `name`; 0 if there are too many.
  int64_t NumberOf(absl::string_view name);

  std::optional<c10::Device> gpu_;
  // Numbers of communications: before this step; in it until now; in the graph
  // that it records; in any graph.
  int64_t before_ = 0, in_step_ = 0, recorded_now_ = 0, recorded_ = 0;
  int64_t last_ = 0;  // the word of what has begun last
  std::array<int64_t, kWords> host_words_ = {};
  // host_words_, or page-locked memory.
  std::atomic<int64_t*> words_ = host_words_.data();
  mutable absl::Mutex mutex_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_) = {"a communication"};
  std::map<std::string, int64_t, std::less<>> numbers_ ABSL_GUARDED_BY(mutex_);
  std::string host_ ABSL_GUARDED_BY(mutex_);
  bool excused_ ABSL_GUARDED_BY(mutex_) = false;
  const std::string process_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DIST_PROGRESS_H_
