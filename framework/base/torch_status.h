#ifndef FRAMEWORK_BASE_TORCH_STATUS_H_
#define FRAMEWORK_BASE_TORCH_STATUS_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace tessera {

// The two doors between LibTorch, which throws, and this code, which does not.

// Runs `fn` and turns what it throws into a status: ResourceExhausted for a
// device out of memory (the message keeps LibTorch's figures), the original
// status where ThrowIfError() threw it, Internal with LibTorch's first line
// for anything else. No stack trace.
absl::Status StatusFromTorch(absl::FunctionRef<void()> fn);
// The same for an `fn` that itself returns a status.
absl::Status StatusFromTorchOr(absl::FunctionRef<absl::Status()> fn);

// Inside an op, whose calls return nothing: throws what StatusFromTorch() turns
// back into `status`.
void ThrowIfError(const absl::Status& status);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_TORCH_STATUS_H_
