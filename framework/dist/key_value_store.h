#ifndef FRAMEWORK_DIST_KEY_VALUE_STORE_H_
#define FRAMEWORK_DIST_KEY_VALUE_STORE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// The key-value store of a run, as the heartbeat and the hang watch use it:
// without LibTorch, which throws. Thread-safe. A request fails if the store is
// gone.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;

  virtual absl::Status Set(const std::string& key,
                           const std::string& value) = 0;
  // Does nothing if the key has a value.
  virtual absl::Status SetIfMissing(const std::string& key,
                                    const std::string& value) = 0;
  // The value; nullopt if the key is missing.
  virtual absl::StatusOr<std::optional<std::string>> Get(
      const std::string& key) = 0;
  // The sum; a missing key counts as 0.
  virtual absl::StatusOr<int64_t> Add(const std::string& key,
                                      int64_t number) = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_DIST_KEY_VALUE_STORE_H_
