#include "framework/dist/heartbeat.h"

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/dist/memory_store.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int kAllowedPolls = 20;
// The thread that watches the polls must not starve for kAllowedPolls of them.
constexpr absl::Duration kInterval = absl::Milliseconds(50);

// A store in which rank 1 gives a sign of life in every n-th poll of rank 0.
class StoreWithPeer : public MemoryStore {
 public:
  explicit StoreWithPeer(int every) : every_(every) {}

  absl::StatusOr<int64_t> Add(const std::string& key, int64_t value) override {
    if (key == "beats/1" && value == 0) {
      const absl::MutexLock lock(&mutex_);
      value = ++polls_ % every_ == 0 ? 1 : 0;
    }
    return MemoryStore::Add(key, value);
  }
  int polls() const {
    const absl::MutexLock lock(&mutex_);
    return polls_;
  }

 private:
  const int every_;
  mutable absl::Mutex mutex_;
  int polls_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Rank 0 of two, and what it has reported.
class HeartbeatTest : public testing::Test {
 protected:
  void Start(int every) {
    store_ = std::make_shared<StoreWithPeer>(every);
    heartbeat_ = std::make_unique<Heartbeat>(
        store_,
        Heartbeat::Options{.rank = 0,
                           .world_size = 2,
                           .interval = kInterval,
                           .timeout = kAllowedPolls * kInterval},
        [this](absl::string_view lost) {
          report_ = std::string(lost);
          reported_.Notify();
        });
  }

  std::shared_ptr<StoreWithPeer> store_;
  std::string report_;
  absl::Notification reported_;
  std::unique_ptr<Heartbeat> heartbeat_;  // ends before what it reports to
};

TEST_F(HeartbeatTest, SilenceCountsAnewAfterEachSignOfLife) {
  // Three times as many polls are silent as may be in a row.
  Start(/*every=*/kAllowedPolls - 5);
  while (store_->polls() < 4 * kAllowedPolls) {
    ASSERT_FALSE(reported_.WaitForNotificationWithTimeout(kInterval))
        << report_;
  }
}

TEST_F(HeartbeatTest, APeerIsLostAfterTheLastPollThatMayBeSilent) {
  Start(/*every=*/1'000'000);
  reported_.WaitForNotification();
  EXPECT_THAT(report_, HasSubstr("rank 1 of 2 has given no sign of life"));
  // The first poll has nothing to compare with.
  EXPECT_EQ(store_->polls(), kAllowedPolls + 1);
  EXPECT_EQ(store_->Get("failure").value(), report_);
}

TEST_F(HeartbeatTest, ReportsWhatAnotherRankAnnounces) {
  Start(/*every=*/1);
  ASSERT_TRUE(store_->Set("failure", "the disk is full").ok());
  // As a thread whose communication has failed.
  while (!reported_.HasBeenNotified()) heartbeat_->AwaitReport();
  EXPECT_EQ(report_, "the disk is full");
}

// A store that answers rank 1 a few times and then no more, as if rank 0 were
// suspended, until Resume().
class SuspendedStore : public MemoryStore {
 public:
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t value) override {
    if (key == "beats/1" && ++beats_ > 3) resumed_.WaitForNotification();
    return MemoryStore::Add(key, value);
  }
  void Resume() { resumed_.Notify(); }

 private:
  int beats_ = 0;  // of one thread
  absl::Notification resumed_;
};

TEST(HeartbeatOfRankOneTest, RankZeroIsLostIfItsStoreNeverAnswers) {
  const auto store = std::make_shared<SuspendedStore>();
  std::string report;
  absl::Notification reported;
  Heartbeat heartbeat(store,
                      {.rank = 1,
                       .world_size = 2,
                       .interval = absl::Milliseconds(10),
                       .timeout = absl::Milliseconds(50)},
                      [&](absl::string_view lost) {
                        report = std::string(lost);
                        reported.Notify();
                      });
  EXPECT_TRUE(reported.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_THAT(report, HasSubstr("rank 0 of 2 has not answered for 50ms"));
  store->Resume();
}

}  // namespace
}  // namespace tessera
