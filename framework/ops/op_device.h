#ifndef FRAMEWORK_OPS_OP_DEVICE_H_
#define FRAMEWORK_OPS_OP_DEVICE_H_

#include <string>

#include "c10/core/ScalarType.h"
#include "framework/cuda/device.h"

namespace tessera {

// What the ops' plans depend on of the device that they are built for.
struct OpDevice {
  bool cuda = false;
  int multiprocessors = 0;

  static OpDevice Of(const DeviceInfo& device) {
    return {device.is_cuda(), device.multiprocessors};
  }

  // As cuda::HasKernels() says of a tensor.
  bool HasKernels(at::ScalarType dtype) const {
    return cuda && (dtype == at::kFloat || dtype == at::kHalf ||
                    dtype == at::kBFloat16);
  }
  // What runs an op of `dtype`, for the printed step.
  std::string KernelName(at::ScalarType dtype) const {
    if (HasKernels(dtype)) return "own kernel";
    return !cuda && dtype == at::kFloat ? "host loops" : "ATen";
  }
};

}  // namespace tessera

#endif  // FRAMEWORK_OPS_OP_DEVICE_H_
