#include "framework/observe/nvtx_observer.h"

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "nvtx3/nvToolsExt.h"

namespace tessera {
namespace {

class NvtxObserver : public PhaseObserver {
 public:
  void Begin(absl::string_view segment) override {
    // NVTX needs a terminating NUL, which a string_view does not guarantee.
    nvtxRangePushA(std::string(segment).c_str());
  }
  void End() override { nvtxRangePop(); }
};

}  // namespace

std::unique_ptr<PhaseObserver> CreateNvtxObserver() {
  return std::make_unique<NvtxObserver>();
}

}  // namespace tessera
