#ifndef FRAMEWORK_PROGRAM_VALUE_H_
#define FRAMEWORK_PROGRAM_VALUE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/strings/string_view.h"
#include "c10/core/ScalarType.h"

namespace tessera {

// Shape and dtype of a tensor, which need not exist yet.
struct TensorType {
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;

  int64_t numel() const;
  int64_t bytes() const;
  bool operator==(const TensorType&) const = default;
};

// A contiguous tensor of LibTorch's meta device, which has no memory.
at::Tensor WithoutMemory(const TensorType& type);

// The factors and the result of a matrix product, out = a b. They have the
// dtypes and strides of the tensors that an op computes with, but no memory;
// their storages stand for memory aligned to 256 bytes.
struct MatrixProduct {
  at::Tensor a, b, out;
};

// "BF16", "FP32", "INT64".
absl::string_view DtypeName(at::ScalarType dtype);
// "BF16 [4, 512, 2560]"
std::string ToString(const TensorType& type);

// The purpose of a tensor in a step.
enum class Role {
  kInput,       // written before the step: token ids, targets, tables
  kParameter,   // a parameter block, in the dtype in which an op reads it
  kActivation,  // written by a forward run
  kGradient,    // of an activation, written by a backward run
  kGathered,    // a parameter block that ranks divide, whole for a while
};

// A value of a program: its index in Program::values(). Cheap to copy.
struct Value {
  int index = -1;

  bool defined() const { return index >= 0; }
  bool operator==(const Value&) const = default;
};

// One tensor of a step. Every value is written once: a recomputed or
// accumulated tensor is another value, which may reuse the memory.
struct ValueInfo {
  std::string name;  // "block_3/ffn/w13"
  TensorType type;
  Role role = Role::kActivation;
  // kParameter, kGathered: index into Program::parameters().
  int parameter = -1;
  // True if a gradient flows into it: a trained parameter, or a result that
  // depends on one.
  bool needs_grad = false;
};

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_VALUE_H_
