#ifndef FRAMEWORK_CUDA_CUDA_STATUS_H_
#define FRAMEWORK_CUDA_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera {

// A CUDA runtime code as a status; `action` says what was tried: "AdamW's
// kernel". ResourceExhausted when the device is out of memory, so that it is
// told from a fault.
inline absl::Status AsStatus(cudaError_t error, absl::string_view action) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(action, " failed: ", cudaGetErrorName(error), ", ",
                   cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation
             ? absl::ResourceExhaustedError(message)
             : absl::InternalError(message);
}

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_CUDA_STATUS_H_
