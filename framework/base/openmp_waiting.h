#ifndef FRAMEWORK_BASE_OPENMP_WAITING_H_
#define FRAMEWORK_BASE_OPENMP_WAITING_H_

#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tessera {

// Lets waiting OpenMP threads sleep soon while other programs use the cores.
//
// LibTorch's OpenMP runtime, libgomp, makes a thread that waits for work or for
// the other threads spin 300,000 times (some 10 ms) before it sleeps, which
// suits the short gaps between ops. If other programs use the cores, the
// threads that are waited for do not run meanwhile, and training on a CPU takes
// several times as long. With more OpenMP threads than cores, libgomp spins 100
// times only. So while the calling thread often waits for a core, this keeps a
// team of sleeping OpenMP threads, one more than there are cores (measured in
// docs/experiments/openmp_waiting).
//
// Does nothing if GOMP_SPINCOUNT or OMP_WAIT_POLICY is set, with
// OMP_NUM_THREADS=1, without libgomp, and if the system does not count how long
// a thread waits for a core.
class OpenMpWaiting {
 public:
  // How long a thread has been ready to run without a core so far.
  using Waited = std::function<std::optional<absl::Duration>()>;
  // Linux' count for the calling thread.
  static Waited OfThisThread();

  explicit OpenMpWaiting(Waited waited = OfThisThread(),
                         absl::Duration interval = absl::Milliseconds(100));
  ~OpenMpWaiting();

  OpenMpWaiting(const OpenMpWaiting&) = delete;
  OpenMpWaiting& operator=(const OpenMpWaiting&) = delete;

 private:
  void Watch();

  const Waited waited_;
  const absl::Duration interval_;
  absl::Mutex mutex_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watch_;
};

}  // namespace tessera

#endif  // FRAMEWORK_BASE_OPENMP_WAITING_H_
