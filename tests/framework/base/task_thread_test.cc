#include "framework/base/task_thread.h"

#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::ElementsAre;

TEST(TaskThreadTest, RunsTasksInOrderOnAnotherThread) {
  TaskThread thread;
  std::vector<int> order;
  std::thread::id id;
  thread.Post([&] { id = std::this_thread::get_id(); });
  for (const int i : {1, 2, 3}) thread.Post([&, i] { order.push_back(i); });
  ASSERT_TRUE(thread.WaitUntilIdle(absl::InfiniteDuration()));
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
  EXPECT_NE(id, std::this_thread::get_id());
}

TEST(TaskThreadTest, IsNotIdleWhileATaskRuns) {
  absl::Notification done;
  TaskThread thread;
  thread.Post([&] { done.WaitForNotification(); });
  EXPECT_FALSE(thread.WaitUntilIdle(absl::Milliseconds(10)));
  EXPECT_FALSE(thread.WaitUntilIdle(absl::ZeroDuration()));
  done.Notify();
  EXPECT_TRUE(thread.WaitUntilIdle(absl::InfiniteDuration()));
}

TEST(TaskThreadTest, TheDestructorFinishesOneTaskAndDropsTheOthers) {
  absl::Notification began, destroyed;
  bool finished = false, ran_another = false;
  {
    TaskThread thread;
    thread.Post([&] {
      began.Notify();
      EXPECT_FALSE(
          destroyed.WaitForNotificationWithTimeout(absl::Milliseconds(100)));
      finished = true;
    });
    thread.Post([&] { ran_another = true; });
    began.WaitForNotification();
  }
  destroyed.Notify();
  EXPECT_TRUE(finished);
  EXPECT_FALSE(ran_another);
}

}  // namespace
}  // namespace tessera
