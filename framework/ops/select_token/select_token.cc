#include "framework/ops/select_token/select_token.h"

#include <memory>

#include "ATen/ATen.h"
#include "framework/ops/forward_only_op.h"

namespace tessera {
namespace {

class SelectTokenOp : public ForwardOnlyOp {
 public:
  absl::string_view kind() const override { return "select_token"; }

  void Forward(const ForwardArgs& args) const override {
    at::Tensor token = args.results[0];
    at::index_select_out(token, args.operands[0], 1, args.operands[1]);
  }

  Cost ForwardCost() const override { return {.bytes = 2 * result(0).bytes()}; }
};

}  // namespace

Value SelectToken(ProgramBuilder& b, Value x, Value position) {
  TensorType type = b.type(x);
  type.shape[1] = 1;
  return b.Add(std::make_unique<SelectTokenOp>(), "select_token", {x, position},
               {std::move(type)})[0];
}

}  // namespace tessera
