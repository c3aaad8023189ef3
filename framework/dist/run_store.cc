#include "framework/dist/run_store.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "c10/util/Exception.h"
#include "framework/base/monotonic_clock.h"

namespace tessera {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr absl::Duration kFirstPoll = absl::Milliseconds(1);
constexpr absl::Duration kLongestPoll = absl::Milliseconds(20);

std::string ToString(const Bytes& bytes) {
  return std::string(bytes.begin(), bytes.end());
}
Bytes ToBytes(const std::string& text) {
  return Bytes(text.begin(), text.end());
}

class RunStore final : public c10d::Store {
 public:
  explicit RunStore(StoreCall call) : call_(std::move(call)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<RunStore>(*this);
  }

  using Store::set;
  void set(const std::string& key, const Bytes& value) override {
    Call({"set", key, ToString(value)});
  }

  using Store::compareSet;
  Bytes compareSet(const std::string& key, const Bytes& expected,
                   const Bytes& desired) override {
    return ToBytes(
        Single({"compare_set", key, ToString(expected), ToString(desired)}));
  }

  Bytes get(const std::string& key) override {
    wait({key});
    return ToBytes(Single({"get", key}));
  }

  int64_t add(const std::string& key, int64_t value) override {
    return Number({"add", key, absl::StrCat(value)});
  }

  bool deleteKey(const std::string& key) override {
    return Number({"delete", key}) != 0;
  }

  bool check(const std::vector<std::string>& keys) override {
    Fields request = {"check"};
    request.insert(request.end(), keys.begin(), keys.end());
    return Number(request) != 0;
  }

  int64_t getNumKeys() override { return Number({"size"}); }

  void wait(const std::vector<std::string>& keys) override {
    wait(keys, timeout_);
  }

  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    const absl::Duration limit = Limit(timeout);
    const absl::Time deadline = MonotonicNow() + limit;
    absl::Duration poll = kFirstPoll;
    while (!check(keys)) {
      if (MonotonicNow() >= deadline) {
        C10_THROW_ERROR(DistStoreError,
                        absl::StrCat("waited ", absl::FormatDuration(limit),
                                     " for ", absl::StrJoin(keys, ", ")));
      }
      absl::SleepFor(poll);
      poll = std::min(2 * poll, kLongestPoll);
    }
  }

 private:
  static absl::Duration Limit(const std::chrono::milliseconds& timeout) {
    return timeout == kNoTimeout ? absl::InfiniteDuration()
                                 : absl::FromChrono(timeout);
  }

  Fields Call(const Fields& request) {
    absl::StatusOr<Fields> answer = call_(request, Limit(timeout_));
    if (!answer.ok()) {
      C10_THROW_ERROR(DistNetworkError, std::string(answer.status().message()));
    }
    return *std::move(answer);
  }

  std::string Single(const Fields& request) {
    Fields answer = Call(request);
    if (answer.size() != 1) {
      C10_THROW_ERROR(DistStoreError,
                      absl::StrCat("no answer to ", request[0]));
    }
    return std::move(answer[0]);
  }

  int64_t Number(const Fields& request) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(Single(request), &number)) {
      C10_THROW_ERROR(DistStoreError,
                      absl::StrCat("no number in answer to ", request[0]));
    }
    return number;
  }

  const StoreCall call_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> MakeRunStore(StoreCall call) {
  return c10::make_intrusive<RunStore>(std::move(call));
}

}  // namespace tessera
