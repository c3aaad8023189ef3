#ifndef FRAMEWORK_DIST_PROGRESS_H_
#define FRAMEWORK_DIST_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
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
// graph counts each time that the graph is launched.
class Progress {
 public:
  Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // From now on counts what is enqueued on the GPU `device`, not on the host,
  // and from 0. This and the functions below throw LibTorch's exceptions.
  void CountOn(c10::Device device);
  void Begin(absl::string_view name) { Count(kBegun, name); }
  void End(absl::string_view name) { Count(kEnded, name); }
  // The current stream's work from now on belongs to `step`.
  void SetStep(int64_t step);
  // RankProgress::host and excused. Returns the host's work before.
  std::string SetHost(absl::string_view host, bool excused);

  // Does not wait for the device.
  RankProgress Now() const;

 private:
  enum Word { kBegun, kEnded, kStep, kWords };
  // The lower bits of a count say which name.
  static constexpr int kNameBits = 16;

  void Count(Word word, absl::string_view name);
  // The number of `name`; 0 if there are too many.
  int64_t NumberOf(absl::string_view name);

  // kWords of INT64 in host memory, page-locked for a GPU, and the GPU's
  // counts.
  at::Tensor words_, counts_;
  mutable absl::Mutex mutex_;  // also for words_, between CountOn() and Now()
  std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_) = {"a communication"};
  std::map<std::string, int64_t, std::less<>> numbers_ ABSL_GUARDED_BY(mutex_);
  std::string host_ ABSL_GUARDED_BY(mutex_);
  bool excused_ ABSL_GUARDED_BY(mutex_) = false;
  const std::string process_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DIST_PROGRESS_H_
