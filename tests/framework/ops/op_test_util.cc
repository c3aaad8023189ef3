#include "tests/framework/ops/op_test_util.h"

#include <map>
#include <utility>

#include "ATen/ATen.h"
#include "ATen/CPUGeneratorImpl.h"
#include "tests/testing/error_budget.h"
#include "tests/testing/gradient_state.h"
#include "torch/csrc/autograd/autograd.h"

namespace tessera::testing {

void DeviceTest::SetUp() {
  if (GetParam() == at::kCUDA && !at::hasCUDA()) {
    GTEST_SKIP() << "needs a CUDA GPU";
  }
}

at::Tensor Randn(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype,
                 at::Device device) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kDouble)
      .to(device, dtype);
}

ParameterStoreOptions Fp64(at::Device device) {
  return {.device = device,
          .weights = {at::kDouble, at::kDouble},
          .gradient = at::kDouble};
}

namespace {

std::map<const Parameter*, ParameterStore*>& Stores() {
  static auto* stores = new std::map<const Parameter*, ParameterStore*>();
  return *stores;
}

}  // namespace

ParameterStore& StoreOf(const Parameter& parameter) {
  return *Stores().at(&parameter);
}

OneParameter MakeParameter(at::IntArrayRef shape,
                           const ParameterStoreOptions& options,
                           bool trainable) {
  return MakeParameters(
      {{.name = "p",
        .members = {{.name = "p", .shape = shape.vec(), .init = Init::kZeros}},
        .trainable = trainable}},
      options);
}

OneParameter MakeParameters(const std::vector<ParameterBlockSpec>& blocks,
                            const ParameterStoreOptions& options) {
  auto store = ParameterStore::Create(blocks, options);
  EXPECT_TRUE(store.ok()) << store.status();
  OneParameter made = {.store = *std::move(store)};
  made.p = &made.store->Get(blocks[0].name);
  Stores()[made.p] = made.store.get();
  uint64_t seed = 1;
  for (const ParameterSlice& slice : made.store->slices()) {
    made.store->Write(
        slice, 0,
        Randn(slice.shape, seed++, at::kDouble, options.device).flatten());
  }
  return made;
}

Evaluation Evaluate(const OpFn& fn, const std::vector<at::Tensor>& inputs,
                    const OneParameter* parameter) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.detach().clone());
    if (input.is_floating_point()) leaves.back().requires_grad_();
  }
  if (parameter != nullptr) BeginGradients(*parameter->store);
  Evaluation result = {.y = fn(leaves)};
  // Values that every dtype represents exactly.
  const at::Tensor cotangent = result.y.dim() == 0
                                   ? at::ones_like(result.y)
                                   : Randn(result.y.sizes(), /*seed=*/2,
                                           at::kBFloat16, result.y.device())
                                         .to(result.y.scalar_type());
  torch::autograd::backward({result.y}, {cotangent});
  for (const at::Tensor& leaf : leaves) {
    if (leaf.is_floating_point()) result.grads.push_back(leaf.grad());
  }
  if (parameter != nullptr) {
    result.grads.push_back(parameter->p->grad().clone());
  }
  return result;
}

Evaluation EvaluateInFp64(const OpFn& fn,
                          const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> wide;
  for (const at::Tensor& input : inputs) {
    wide.push_back(input.is_floating_point() ? input.to(at::kDouble) : input);
  }
  return Evaluate(fn, wide);
}

void ExpectWithinBudget(const at::Tensor& got, const at::Tensor& naive,
                        const at::Tensor& oracle) {
  if (got.scalar_type() != at::kDouble) {
    EXPECT_TRUE(ErrorBudget::AgainstBaseline(naive, oracle).Accepts(got));
    return;
  }
  EXPECT_TRUE(at::allclose(got, oracle, /*rtol=*/1e-12, /*atol=*/1e-12))
      << "largest difference " << (got - oracle).abs().max().item<double>();
}

void ExpectWithinBudget(const Evaluation& got, const Evaluation& naive,
                        const Evaluation& oracle) {
  {
    SCOPED_TRACE("result");
    ExpectWithinBudget(got.y, naive.y, oracle.y);
  }
  ASSERT_EQ(got.grads.size(), oracle.grads.size());
  for (size_t i = 0; i < got.grads.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "gradient " << i);
    ExpectWithinBudget(got.grads[i], naive.grads[i], oracle.grads[i]);
  }
}

void AddToGradients(Schedule* schedule) {
  for (StepRun& run : schedule->runs) {
    for (GradientWrite& write : run.d_operands) {
      write.accumulate |= write.parameter >= 0;
    }
  }
}

std::vector<at::ScalarType> FloatDtypes(at::Device device) {
  std::vector<at::ScalarType> dtypes = {at::kDouble, at::kFloat, at::kBFloat16};
  if (device.is_cuda()) dtypes.push_back(at::kHalf);
  return dtypes;
}

}  // namespace tessera::testing
