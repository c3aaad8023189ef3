#ifndef FRAMEWORK_BASE_TORCH_STATUS_H_
#define FRAMEWORK_BASE_TORCH_STATUS_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace tessera {

// Conversions between LibTorch, which throws, and this code, which does not.

// Runs `fn` and converts an exception to a status: ResourceExhausted if the
// host or a device is out of memory, also outside of LibTorch's allocator (with
// LibTorch's figures if it has any), the original status if it came from
// ThrowIfError(), otherwise Internal with the first line of LibTorch's message.
// No stack trace.
absl::Status StatusFromTorch(absl::FunctionRef<void()> fn);
// StatusFromTorch() for a function that returns a status.
absl::Status StatusFromTorchOr(absl::FunctionRef<absl::Status()> fn);

// Throws an error from inside an op, where calls return nothing.
// StatusFromTorch() converts it back to `status`.
void ThrowIfError(const absl::Status& status);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_TORCH_STATUS_H_
