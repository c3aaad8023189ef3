#include "framework/observe/nvtx_observer.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nvtx3/nvToolsExt.h"

namespace tessera {
namespace {

// Steps of a process in the range "warmup": libraries load, the allocator
// fills.
constexpr int64_t kWarmupSteps = 5;

class NvtxObserver : public PhaseObserver {
 public:
  ~NvtxObserver() override {
    if (steps_ > 0) nvtxRangePop();
  }

  void BeginStep(int64_t step) noexcept override {
    if (steps_ == 0) Push("warmup");
    if (steps_ == kWarmupSteps) {
      nvtxRangePop();
      Push("measurement");
    }
    ++steps_;
    Push(absl::StrCat("step_", step));
  }
  void EndStep() noexcept override { nvtxRangePop(); }
  void Begin(absl::string_view segment) noexcept override {
    // NVTX needs a terminating NUL, which a string_view does not guarantee.
    Push(std::string(segment));
  }
  void End() noexcept override { nvtxRangePop(); }
  void BeginOp(absl::string_view name, OpResults) noexcept override {
    Begin(name);
  }
  void EndOp() noexcept override { nvtxRangePop(); }

 private:
  static void Push(const std::string& name) { nvtxRangePushA(name.c_str()); }

  int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<PhaseObserver> CreateNvtxObserver() {
  return std::make_unique<NvtxObserver>();
}

}  // namespace tessera
