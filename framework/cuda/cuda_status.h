#ifndef FRAMEWORK_CUDA_CUDA_STATUS_H_
#define FRAMEWORK_CUDA_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera {

// A CUDA runtime error as a status. `action` is what failed: "AdamW's kernel".
// ResourceExhausted if the device is out of memory, otherwise Internal. Clears
// the runtime's last error, which the next launch would report as its own.
inline absl::Status AsStatus(cudaError_t error, absl::string_view action) {
  if (error == cudaSuccess) return absl::OkStatus();
  static_cast<void>(cudaGetLastError());
  const std::string message =
      absl::StrCat(action, " failed: ", cudaGetErrorName(error), ", ",
                   cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation
             ? absl::ResourceExhaustedError(message)
             : absl::InternalError(message);
}

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_CUDA_STATUS_H_
