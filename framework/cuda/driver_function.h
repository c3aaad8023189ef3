#ifndef FRAMEWORK_CUDA_DRIVER_FUNCTION_H_
#define FRAMEWORK_CUDA_DRIVER_FUNCTION_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/cuda_status.h"

namespace tessera {

// The driver's function `name` as of CUDA 12.0, of type `Function`. Found at
// run time, because programs must start without a driver:
//   DriverFunction<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent")
template <typename Function>
absl::StatusOr<Function> DriverFunction(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  RETURN_IF_ERROR(
      AsStatus(cudaGetDriverEntryPointByVersion(name, &function, 12000,
                                                cudaEnableDefault, &found),
               absl::StrCat("finding the driver's ", name, "()")));
  if (found != cudaDriverEntryPointSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("this machine's driver has no ", name, "()"));
  }
  return reinterpret_cast<Function>(function);
}

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_DRIVER_FUNCTION_H_
