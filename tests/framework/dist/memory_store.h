#ifndef TESTS_FRAMEWORK_DIST_MEMORY_STORE_H_
#define TESTS_FRAMEWORK_DIST_MEMORY_STORE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "framework/dist/key_value_store.h"
#include "framework/dist/key_value_table.h"

namespace tessera {

// A store for the ranks of one process.
class MemoryStore : public KeyValueStore {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    Apply({"set", key, value});
    return absl::OkStatus();
  }
  absl::Status SetIfMissing(const std::string& key,
                            const std::string& value) override {
    Apply({"compare_set", key, "", value});
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<std::string>> Get(
      const std::string& key) override {
    const Fields answer = Apply({"get", key});
    if (answer.empty()) return std::nullopt;
    return answer[0];
  }
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t number) override {
    int64_t sum = 0;
    if (!absl::SimpleAtoi(Apply({"add", key, absl::StrCat(number)})[0], &sum)) {
      return absl::InternalError("not a number");
    }
    return sum;
  }

 private:
  Fields Apply(const Fields& request) {
    const absl::MutexLock lock(&mutex_);
    return table_.Apply(request).value();
  }

  absl::Mutex mutex_;
  KeyValueTable table_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESTS_FRAMEWORK_DIST_MEMORY_STORE_H_
