#include "framework/base/task_thread.h"

#include <utility>

namespace tessera {

TaskThread::~TaskThread() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void TaskThread::Post(std::function<void()> task) {
  const absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}

bool TaskThread::WaitUntilIdle(absl::Duration timeout) {
  const absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(this, &TaskThread::IsIdle),
                                 timeout);
}

void TaskThread::Run() {
  const absl::MutexLock lock(&mutex_);
  while (true) {
    mutex_.Await(absl::Condition(this, &TaskThread::MustWake));
    if (stopping_) return;
    // Posting more tasks does not move this one.
    const std::function<void()>& task = tasks_.front();
    mutex_.Unlock();
    task();
    mutex_.Lock();
    tasks_.pop_front();
  }
}

}  // namespace tessera
