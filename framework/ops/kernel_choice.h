#ifndef FRAMEWORK_OPS_KERNEL_CHOICE_H_
#define FRAMEWORK_OPS_KERNEL_CHOICE_H_

#include <string>

#include "c10/core/ScalarType.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/device.h"
#include "framework/program/op.h"

namespace tessera {

// The kind of kernels that runs an op. Chosen when the program is built, from
// the target device and the dtypes.
enum class KernelKind {
  kReference,  // ATen's operations: any device, any float dtype
  kCpu,        // loops over FP32 rows in host memory, on all cores
  kCuda,       // our CUDA kernels: FP32, FP16 and BF16, computing in FP32
};

// The kind of kernels for tensors of `dtype` on `device`.
inline KernelKind KernelKindFor(const DeviceInfo& device,
                                at::ScalarType dtype) {
  if (!device.is_cuda()) {
    return dtype == at::kFloat ? KernelKind::kCpu : KernelKind::kReference;
  }
  const bool has_kernels =
      dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
  return has_kernels ? KernelKind::kCuda : KernelKind::kReference;
}

// An op with kernels of each kind. `Kernels` is a struct of function pointers
// with the values Kernels::kReference, kCpu and, in a CUDA build, kCuda.
template <typename Kernels>
class OpWithKernels : public Op {
 public:
  explicit OpWithKernels(KernelKind kind) : kind_(kind) {}

  std::string kernel() const override {
    return kind_ == KernelKind::kCuda  ? "own kernel"
           : kind_ == KernelKind::kCpu ? "host loops"
                                       : "ATen";
  }

 protected:
  KernelKind kernel_kind() const { return kind_; }
  const Kernels& kernels() const {
    if constexpr (kCudaBuild) {
      if (kind_ == KernelKind::kCuda) return Kernels::kCuda;
    }
    return kind_ == KernelKind::kCpu ? Kernels::kCpu : Kernels::kReference;
  }

 private:
  const KernelKind kind_;
};

}  // namespace tessera

#endif  // FRAMEWORK_OPS_KERNEL_CHOICE_H_
