#ifndef FRAMEWORK_BASE_TASK_THREAD_H_
#define FRAMEWORK_BASE_TASK_THREAD_H_

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tessera {

// Runs tasks on its own thread, one after another in the order in which they
// were posted.
class TaskThread {
 public:
  TaskThread() : thread_(&TaskThread::Run, this) {}
  // Waits for the task that is running; tasks that have not begun are dropped.
  ~TaskThread();

  // Never waits for a task.
  void Post(std::function<void()> task);
  // Waits at most `timeout` until all posted tasks have run; false if they have
  // not.
  bool WaitUntilIdle(absl::Duration timeout);

 private:
  void Run();
  bool IsIdle() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return tasks_.empty();
  }
  bool MustWake() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !tasks_.empty();
  }

  absl::Mutex mutex_;
  // The first is running.
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tessera

#endif  // FRAMEWORK_BASE_TASK_THREAD_H_
