#include "framework/ops/parameter_grad.h"

#include <cstdint>

namespace tessera {
namespace {

constexpr char kParameterKey[] = "parameter";

}  // namespace

GradTarget ClaimGrad(Parameter& parameter) {
  return {.grad = parameter.grad(),
          .accumulate = !parameter.ClaimFirstGradWrite()};
}

void SaveParameter(torch::autograd::AutogradContext* ctx,
                   Parameter* parameter) {
  // An IValue holds no plain pointers.
  ctx->saved_data[kParameterKey] = reinterpret_cast<int64_t>(parameter);
}

Parameter& SavedParameter(torch::autograd::AutogradContext* ctx) {
  return *reinterpret_cast<Parameter*>(ctx->saved_data[kParameterKey].toInt());
}

}  // namespace tessera
