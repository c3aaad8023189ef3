#ifndef TESTS_FRAMEWORK_OPS_OP_TEST_UTIL_H_
#define TESTS_FRAMEWORK_OPS_OP_TEST_UTIL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "framework/params/parameter_store.h"
#include "framework/program/schedule.h"
#include "gtest/gtest.h"

namespace tessera::testing {

// One suite for every device; instantiate it with
//   INSTANTIATE_TEST_SUITE_P(Cpu, MyTest, ::testing::Values(at::kCPU));
//   INSTANTIATE_TEST_SUITE_P(Gpu, MyTest, ::testing::Values(at::kCUDA));
class DeviceTest : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override;
  at::Device device() const { return at::Device(GetParam()); }
};

// Standard normal values from `seed`, the same on every device.
at::Tensor Randn(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype,
                 at::Device device);

// A store with one random block named "p".
struct OneParameter {
  std::unique_ptr<ParameterStore> store;
  Parameter* p = nullptr;
};
OneParameter MakeParameter(at::IntArrayRef shape,
                           const ParameterStoreOptions& options,
                           bool trainable = true);
// A store with random blocks of one member each; p is the first.
OneParameter MakeParameters(const std::vector<ParameterBlockSpec>& blocks,
                            const ParameterStoreOptions& options);
// The store of a parameter from these functions.
ParameterStore& StoreOf(const Parameter& parameter);
// Master, compute and gradient in FP64 on `device`.
ParameterStoreOptions Fp64(at::Device device);

// A result and the gradients of <cotangent, result>.
struct Evaluation {
  at::Tensor y;
  std::vector<at::Tensor> grads;
};
using OpFn = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// Runs fn on leaves with the inputs' values. The cotangent is 1 for a scalar
// result, else random, and the same for every dtype of `inputs`. If there is a
// parameter, its gradient comes after those of the inputs.
Evaluation Evaluate(const OpFn& fn, const std::vector<at::Tensor>& inputs,
                    const OneParameter* parameter = nullptr);
// Evaluate() with FP64 copies.
Evaluation EvaluateInFp64(const OpFn& fn,
                          const std::vector<at::Tensor>& inputs);

// Expects at most twice the error of `naive`, or 1e-12 for FP64.
void ExpectWithinBudget(const at::Tensor& got, const at::Tensor& naive,
                        const at::Tensor& oracle);
// Checks result and gradients.
void ExpectWithinBudget(const Evaluation& got, const Evaluation& naive,
                        const Evaluation& oracle);

// The schedule adds to the gradients of parameters, as a later micro-batch
// does.
void AddToGradients(Schedule* schedule);

// FP64, FP32 and BF16; FP16 too on a GPU.
std::vector<at::ScalarType> FloatDtypes(at::Device device);

}  // namespace tessera::testing

#endif  // TESTS_FRAMEWORK_OPS_OP_TEST_UTIL_H_
