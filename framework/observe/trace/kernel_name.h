#ifndef FRAMEWORK_OBSERVE_TRACE_KERNEL_NAME_H_
#define FRAMEWORK_OBSERVE_TRACE_KERNEL_NAME_H_

#include <string>

#include "absl/strings/string_view.h"
#include "framework/observe/trace/trace.h"

namespace tessera {

// The name under which people know a kernel, from its demangled symbol: without
// return type, parameters, namespaces, and template arguments that only say how
// operands are addressed.
//
//   void at::native::vectorized_elementwise_kernel<4,
//       at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, ...)
//     vectorized_elementwise_kernel<4, FillFunctor<float>>
//   void tessera::(anonymous namespace)::RmsNormBackward<float, __nv_bfloat16,
//       8>(...)
//     RmsNormBackward<float, bf16, 8>
//
// Two symbols may have the same name.
std::string ReadableKernelName(absl::string_view symbol);

// The same with every template argument.
std::string FullKernelName(absl::string_view symbol);

enum class KernelClass {
  kGemm,           // matrix products, in whichever op
  kAttention,      // the rest of attention, and kernels that fuse its products
  kNorm,           // normalisation
  kElementwise,    // one output element from one element of each operand
  kReduction,      // sums, softmax and cross-entropy outside of attention
  kOptimizer,      // gradient norm, clipping and update
  kCopy,           // memcpy and memset
  kCommunication,  // between ranks
  kOther,
};
inline constexpr int kKernelClasses = static_cast<int>(KernelClass::kOther) + 1;

// "GEMM", "attention" ...
absl::string_view KernelClassName(KernelClass kernel_class);

// Who issued an activity.
struct KernelIssuer {
  absl::string_view phase;    // "forward"; "clip", "optimizer"
  absl::string_view op_kind;  // Op::kind(), "linear"; empty outside of ops
};

// By the kernel's name if that says it (copies, collectives, matrix products,
// fused attention), then by the phase and the kind of op, then by the name of a
// library's kernel.
KernelClass ClassOf(DeviceActivity::Kind kind, absl::string_view symbol,
                    const KernelIssuer& issuer);

// Whether it computes matrix products, by its name: the kernels of GEMMs and of
// fused attention, except those that prepare or finish their work.
bool ComputesProducts(absl::string_view symbol);

// Whether it is a collective's.
bool IsCommunication(absl::string_view symbol);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_KERNEL_NAME_H_
