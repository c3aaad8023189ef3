#include "trainers/run/stop_signal.h"

#include <time.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "framework/base/exit_code.h"

namespace tessera {
namespace {

constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;

// Atomics, because several threads may receive signals at once. A handler may
// use lock-free ones.
std::atomic<int> received_signal = 0;
std::atomic<int64_t> first_urgent = 0;  // SIGINT or SIGTERM; 0: none yet
static_assert(std::atomic<int>::is_always_lock_free &&
              std::atomic<int64_t>::is_always_lock_free);

int64_t MonotonicNanoseconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNanosecondsPerSecond + now.tv_nsec;
}

// Only calls async-signal-safe functions.
void Receive(int signo) {
  int none = 0;
  received_signal.compare_exchange_strong(none, signo);
  if (signo != SIGINT && signo != SIGTERM) return;
  const int64_t now = MonotonicNanoseconds();
  int64_t first = 0;
  if (first_urgent.compare_exchange_strong(first, now)) return;
  if (now - first < kNanosecondsPerSecond) return;
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(signo, &action, nullptr);
  raise(signo);  // delivered when this handler returns
}

}  // namespace

StopSignal::StopSignal() {
  received_signal = 0;
  first_urgent = 0;
  struct sigaction action = {};
  action.sa_handler = Receive;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    sigaction(kStopSignals[i], nullptr, &earlier_[i]);
    // Only SIGHUP: background jobs of a shell ignore SIGINT, and still it must
    // stop them here.
    if (kStopSignals[i] == SIGHUP && earlier_[i].sa_handler == SIG_IGN) {
      continue;
    }
    sigaction(kStopSignals[i], &action, nullptr);
  }
}

StopSignal::~StopSignal() {
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    sigaction(kStopSignals[i], &earlier_[i], nullptr);
  }
}

int StopSignal::received() const { return received_signal; }

std::function<absl::Status()> StopCheck() {
  // Copies share it: the work may be divided among several functions.
  return [shared = std::make_shared<std::optional<StopSignal>>()]() {
    std::optional<StopSignal>& stop = *shared;
    if (!stop.has_value()) stop.emplace();
    return stop->received() == 0 ? absl::OkStatus()
                                 : SignalStatus(stop->received());
  };
}

}  // namespace tessera
