// absl::Mutex and absl::Notification over std::mutex, for --config=tsan.
//
// The distribution compiles Abseil without ThreadSanitizer, which then does not
// see what a Mutex orders and reports every access that one protects. This file
// is linked before Abseil's archive and defines what programs use of its
// mutex.o and notification.o, so that the linker leaves those out. If a program
// uses more of them, the linker reports definitions as duplicate: add what is
// missing here.

#include <condition_variable>
#include <memory>
#include <mutex>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace {

struct State {
  std::mutex mutex;
  // Notified before each unlock: any condition may have become true.
  std::condition_variable changed;
};

// The state to which `word` points. The first use creates it, because a Mutex
// that is initialized at compile time is a zero.
State& StateOf(std::atomic<intptr_t>& word) {
  intptr_t address = word.load(std::memory_order_acquire);
  if (address == 0) {
    auto created = std::make_unique<State>();
    const auto mine = reinterpret_cast<intptr_t>(created.get());
    if (word.compare_exchange_strong(address, mine)) {
      address = mine;
      created.release();
    }
  }
  return *reinterpret_cast<State*>(address);
}

}  // namespace

Mutex::~Mutex() { delete reinterpret_cast<State*>(mu_.load()); }

void Mutex::Lock() { StateOf(mu_).mutex.lock(); }

bool Mutex::TryLock() { return StateOf(mu_).mutex.try_lock(); }

void Mutex::Unlock() {
  State& state = StateOf(mu_);
  state.changed.notify_all();
  state.mutex.unlock();
}

// A reader excludes other readers, too.
void Mutex::ReaderLock() { Lock(); }
void Mutex::ReaderUnlock() { Unlock(); }

void Mutex::AssertHeld() const {}
void Mutex::AssertReaderHeld() const {}
void Mutex::ForgetDeadlockInfo() {}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  State& state = StateOf(mu_);
  std::unique_lock<std::mutex> lock(state.mutex, std::adopt_lock);
  state.changed.notify_all();
  bool met = condition.Eval();
  while (!met) {
    const bool late = state.changed.wait_until(lock, ToChronoTime(deadline)) ==
                      std::cv_status::timeout;
    met = condition.Eval();
    if (late) break;
  }
  lock.release();  // stays locked
  return met;
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  return AwaitWithDeadline(condition, Now() + timeout);
}

void Mutex::Await(const Condition& condition) {
  AwaitWithDeadline(condition, InfiniteFuture());
}

void Mutex::LockWhen(const Condition& condition) {
  Lock();
  Await(condition);
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  Lock();
  return AwaitWithDeadline(condition, deadline);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  return LockWhenWithDeadline(condition, Now() + timeout);
}

Condition::Condition(bool (*function)(void*), void* argument)
    : eval_(&CallVoidPtrFunction),
      function_(function),
      method_(nullptr),
      arg_(argument) {}

Condition::Condition(const bool* value)
    : Condition([](void* argument) { return *static_cast<bool*>(argument); },
                const_cast<bool*>(value)) {}

bool Condition::CallVoidPtrFunction(const Condition* condition) {
  return condition->function_(condition->arg_);
}

bool Condition::Eval() const { return eval_(this); }

void Notification::Notify() {
  const MutexLock lock(&mutex_);
  notified_yet_.store(true, std::memory_order_release);
}

// Notify() may still hold the mutex when a waiting thread destroys this object.
Notification::~Notification() { const MutexLock lock(&mutex_); }

void Notification::WaitForNotification() const {
  WaitForNotificationWithDeadline(InfiniteFuture());
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  return WaitForNotificationWithDeadline(Now() + timeout);
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  const MutexLock lock(&mutex_);
  return mutex_.AwaitWithDeadline(
      Condition(&HasBeenNotifiedInternal, &notified_yet_), deadline);
}

ABSL_NAMESPACE_END
}  // namespace absl
