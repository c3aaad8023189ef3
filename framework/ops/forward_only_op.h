#ifndef FRAMEWORK_OPS_FORWARD_ONLY_OP_H_
#define FRAMEWORK_OPS_FORWARD_ONLY_OP_H_

#include <string>

#include "framework/base/check.h"
#include "framework/program/op.h"

namespace tessera {

// An op of generation, without a backward pass; by default ATen computes it.
class ForwardOnlyOp : public Op {
 public:
  std::string kernel() const override { return "ATen"; }
  void Backward(const BackwardArgs&) const override {
    TESSERA_CHECK(false, kind(), " has no gradient");
  }
  BackwardReads ReadsInBackward(Positions) const override { return {}; }
};

}  // namespace tessera

#endif  // FRAMEWORK_OPS_FORWARD_ONLY_OP_H_
