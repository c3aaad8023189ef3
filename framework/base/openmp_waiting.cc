#include "framework/base/openmp_waiting.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "framework/base/monotonic_clock.h"

namespace tessera {
namespace {

// The share of time that a thread waits for a core. For a training thread it is
// 0.001 to 0.006 on an idle machine, once in a while 0.05, and 0.16 to 0.7
// beside one to three busy programs on two cores.
constexpr double kBusy = 0.15, kQuiet = 0.06;
// Threads may spin again after this much quiet time.
constexpr absl::Duration kLeastQuiet = absl::Seconds(3);

// Calls function(data) in each of `threads` OpenMP threads: what GCC makes of
// `#pragma omp parallel`. Null without libgomp.
using Parallel = void (*)(void (*function)(void*), void* data, unsigned threads,
                          unsigned flags);
Parallel FindParallel() {
  return reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
}

// Threads that libgomp counts, and that sleep. They end with the thread that
// has asked for them.
class Team {
 public:
  Team(Parallel parallel, unsigned threads)
      : owner_([this, parallel, threads] {
          parallel([](void*) {}, nullptr, threads, 0);
          end_.WaitForNotification();
        }) {}
  ~Team() {
    end_.Notify();
    owner_.join();
  }

 private:
  absl::Notification end_;
  std::thread owner_;
};

}  // namespace

OpenMpWaiting::Waited OpenMpWaiting::OfThisThread() {
  return
      [path = absl::StrCat("/proc/self/task/", syscall(SYS_gettid),
                           "/schedstat")]() -> std::optional<absl::Duration> {
        std::ifstream file(path);
        int64_t ran_ns = 0, waited_ns = 0;
        if (!(file >> ran_ns >> waited_ns)) return std::nullopt;
        return absl::Nanoseconds(waited_ns);
      };
}

OpenMpWaiting::OpenMpWaiting(Waited waited, absl::Duration interval)
    : waited_(std::move(waited)), interval_(interval) {
  const char* const threads = std::getenv("OMP_NUM_THREADS");
  if (std::getenv("GOMP_SPINCOUNT") != nullptr ||
      std::getenv("OMP_WAIT_POLICY") != nullptr ||
      (threads != nullptr && absl::string_view(threads) == "1") ||
      FindParallel() == nullptr) {
    return;
  }
  watch_ = std::thread(&OpenMpWaiting::Watch, this);
}

OpenMpWaiting::~OpenMpWaiting() {
  {
    const absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  if (watch_.joinable()) watch_.join();
}

void OpenMpWaiting::Watch() {
  std::unique_ptr<Team> team;
  std::optional<absl::Duration> before = waited_();
  absl::Time then = MonotonicNow(), busy = then;
  const absl::MutexLock lock(&mutex_);
  while (before.has_value() &&
         !mutex_.AwaitWithTimeout(absl::Condition(&ending_), interval_)) {
    const std::optional<absl::Duration> waited = waited_();
    if (!waited.has_value()) return;
    const absl::Time now = MonotonicNow();
    const double share = absl::FDivDuration(*waited - *before, now - then);
    before = waited;
    then = now;
    if (share > kQuiet) busy = now;
    if (team == nullptr && share > kBusy) {
      // One more than cores.
      team = std::make_unique<Team>(FindParallel(),
                                    std::thread::hardware_concurrency() + 1);
    } else if (now - busy > kLeastQuiet) {
      team.reset();
    }
  }
}

}  // namespace tessera
