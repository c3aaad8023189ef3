#ifndef FRAMEWORK_OPS_LINEAR_LINEAR_H_
#define FRAMEWORK_OPS_LINEAR_LINEAR_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "framework/program/program.h"

namespace tessera {

// y = x W^T, with operands in the dtype of OpClass::kMatmul.
//   x: [..., in], any float dtype
//   weight: [out, in], read in the dtype of OpClass::kWeights
//   returns y: [..., out]
// Backward reads x for dW and W for dx:
//   dW = dy^T x, in the gradient buffer's dtype; an FP32 buffer accumulates
//        products of lower-precision operands without intermediate rounding;
//   dx = dy W, which may overwrite x, because dW is computed first.
struct LinearOptions {
  std::optional<at::ScalarType> dtype;  // of y; default: kActivation's
  // If set, y is [..., heads, out / heads], else [..., out].
  std::optional<int64_t> heads;
  bool from_heads = false;  // x: [..., heads, in / heads]
};
Value Linear(ProgramBuilder& b, Value x, Weight weight,
             const LinearOptions& options = {});

// How the products of a linear layer are computed.
struct LinearProducts {
  at::ScalarType dtype = at::kFloat;              // of their operands
  at::ScalarType gradient = at::kFloat;           // of the weight's gradient
  std::shared_ptr<const ProductChoices> choices;  // may be null
};
// Those of `op`; nullopt if it is no linear layer.
std::optional<LinearProducts> LinearProductsOf(const Op& op);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_LINEAR_LINEAR_H_
