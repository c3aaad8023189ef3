#include "framework/program/random_state.h"

#include <mutex>

#include "ATen/ATen.h"
#include "ATen/CPUGeneratorImpl.h"
#include "framework/base/torch_status.h"

namespace tessera {

RandomState RandomState::Now(at::Device device) {
  RandomState state;
  state.generators_.push_back(at::detail::getDefaultCPUGenerator());
  if (!device.is_cpu()) {
    state.generators_.push_back(at::globalContext().defaultGenerator(device));
  }
  for (at::Generator& generator : state.generators_) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    state.values_.push_back(generator.get_state());
  }
  return state;
}

void RandomState::Restore() const {
  for (size_t i = 0; i < generators_.size(); ++i) {
    at::Generator generator = generators_[i];
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(values_[i]);
  }
}

ScopedRandomState::~ScopedRandomState() {
  StatusFromTorch([this] { before_.Restore(); }).IgnoreError();
}

}  // namespace tessera
