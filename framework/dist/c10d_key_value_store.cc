#include "framework/dist/c10d_key_value_store.h"

#include <utility>

#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"

namespace tessera {
namespace {

class C10dKeyValueStore final : public KeyValueStore {
 public:
  explicit C10dKeyValueStore(c10::intrusive_ptr<c10d::Store> store)
      : store_(std::move(store)) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    return StatusFromTorch([&] { store_->set(key, value); });
  }

  absl::Status SetIfMissing(const std::string& key,
                            const std::string& value) override {
    return StatusFromTorch([&] { store_->compareSet(key, "", value); });
  }

  absl::StatusOr<std::optional<std::string>> Get(
      const std::string& key) override {
    std::optional<std::string> value;
    RETURN_IF_ERROR(StatusFromTorch([&] {
      // A get would wait for a missing key.
      if (store_->check({key})) value = store_->get_to_str(key);
    }));
    return value;
  }

  absl::StatusOr<int64_t> Add(const std::string& key, int64_t number) override {
    int64_t sum = 0;
    RETURN_IF_ERROR(StatusFromTorch([&] { sum = store_->add(key, number); }));
    return sum;
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

std::unique_ptr<KeyValueStore> MakeKeyValueStore(
    c10::intrusive_ptr<c10d::Store> store) {
  return std::make_unique<C10dKeyValueStore>(std::move(store));
}

}  // namespace tessera
