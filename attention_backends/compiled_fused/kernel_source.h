#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_KERNEL_SOURCE_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_KERNEL_SOURCE_H_

#include "absl/strings/string_view.h"

namespace tessera {
namespace fused {

// The text of softmax_kernels.cuh, which the build puts into the program.
absl::string_view SoftmaxKernelSource();

}  // namespace fused
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_KERNEL_SOURCE_H_
