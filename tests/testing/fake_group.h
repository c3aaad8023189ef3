#ifndef TESTS_TESTING_FAKE_GROUP_H_
#define TESTS_TESTING_FAKE_GROUP_H_

#include <memory>
#include <string>
#include <vector>

#include "framework/dist/process_group.h"

namespace tessera {

// Rank 0 of two, without the other: operations leave their tensors as they are.
class FakeGroup : public ProcessGroup {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 2; }
  absl::string_view backend() const override { return "fake"; }
  std::string library() const override { return "fake"; }
  absl::Status AllReduceSum(const at::Tensor&) override { return {}; }
  absl::Status ReduceScatterSum(const at::Tensor&, const at::Tensor&) override {
    return {};
  }
  absl::Status AllGather(const at::Tensor&, const at::Tensor&) override {
    return {};
  }
  absl::Status AllToAll(const at::Tensor&, const at::Tensor&) override {
    return {};
  }
  absl::Status Broadcast(const at::Tensor&, int) override { return {}; }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(
      absl::string_view, const std::vector<int>&) override {
    return std::make_unique<FakeGroup>();
  }
  absl::Status Barrier() override { return {}; }
  absl::Status AgreeOn(absl::string_view, uint64_t) override { return {}; }
  absl::Status Finish() override { return {}; }
};

}  // namespace tessera

#endif  // TESTS_TESTING_FAKE_GROUP_H_
