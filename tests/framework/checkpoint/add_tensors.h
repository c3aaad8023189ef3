#ifndef TESTS_FRAMEWORK_CHECKPOINT_ADD_TENSORS_H_
#define TESTS_FRAMEWORK_CHECKPOINT_ADD_TENSORS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/base/status_macros.h"
#include "framework/checkpoint/checkpoint.h"

namespace tessera {

// A tensor in host memory, contiguous, with SizeBytes(spec) bytes.
struct TensorView {
  TensorSpec spec;
  const void* data = nullptr;
};

// Writes and finishes a file of tensors.
inline absl::Status AddTensors(CheckpointWriter* writer, absl::string_view name,
                               absl::Span<const TensorView> tensors) {
  std::vector<TensorSpec> specs;
  for (const TensorView& tensor : tensors) specs.push_back(tensor.spec);
  ASSIGN_OR_RETURN(SafetensorsWriter* const file,
                   writer->AddTensorFile(name, std::move(specs)));
  for (const TensorView& tensor : tensors) {
    ASSIGN_OR_RETURN(const uint64_t bytes, SizeBytes(tensor.spec));
    RETURN_IF_ERROR(
        file->Write({static_cast<const char*>(tensor.data), bytes}));
  }
  return file->Finish();
}

}  // namespace tessera

#endif  // TESTS_FRAMEWORK_CHECKPOINT_ADD_TENSORS_H_
