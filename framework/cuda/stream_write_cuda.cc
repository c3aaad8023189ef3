#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/driver_function.h"
#include "framework/cuda/stream_write.h"

namespace tessera {
namespace cuda {

absl::Status WriteOnStream(c10::Device gpu,
                           absl::Span<const StreamWrite> writes) {
  // The second version, of CUDA 11.7, may be recorded in a graph.
  static const auto batch =
      DriverFunction<decltype(&cuStreamBatchMemOp)>("cuStreamBatchMemOp");
  RETURN_IF_ERROR(batch.status());
  const c10::cuda::CUDAGuard guard(gpu);
  std::vector<CUstreamBatchMemOpParams> operations;
  for (const StreamWrite& write : writes) {
    CUstreamBatchMemOpParams operation = {};
    operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    operation.writeValue.address = reinterpret_cast<CUdeviceptr>(write.word);
    operation.writeValue.value64 = static_cast<cuuint64_t>(write.value);
    operations.push_back(operation);
  }
  const CUresult result =
      (*batch)(c10::cuda::getCurrentCUDAStream(gpu.index()),
               static_cast<unsigned int>(operations.size()), operations.data(),
               /*flags=*/0);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("a write by the GPU's front end failed: the driver's error ",
                   static_cast<int>(result), " of cuStreamBatchMemOp()"));
}

}  // namespace cuda
}  // namespace tessera
