#include "trainers/run/instruments.h"

#include <utility>

#include "framework/cuda/cuda_build.h"
#include "framework/observe/nvtx_observer.h"
#include "framework/observe/phase_timer.h"

namespace tessera {

Instruments::Instruments(const RunPlan& plan) {
  const ObserveConfig& config = plan.config.observe();
  if (config.phases()) {
    instruments_.push_back(std::make_unique<PhaseTimer>(PhaseTimerOptions{
        .device = plan.device.device,
        .detail_every_steps =
            config.block_phases() ? config.log_every_steps() : 0}));
  }
  std::vector<PhaseObserver*> observers;
  if constexpr (kCudaBuild) {
    if (config.nvtx()) {
      nvtx_ = CreateNvtxObserver();
      observers.push_back(nvtx_.get());
    }
  }
  for (const std::unique_ptr<Instrument>& instrument : instruments_) {
    if (instrument->phases() == nullptr) continue;
    observers.push_back(instrument->phases());
  }
  if (!observers.empty()) phases_.emplace(std::move(observers));
}

}  // namespace tessera
