#ifndef FRAMEWORK_PARAMS_INITIAL_VALUES_H_
#define FRAMEWORK_PARAMS_INITIAL_VALUES_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "framework/params/parameter_store.h"

namespace tessera {

// Fills `values`, a contiguous float tensor with spec's number of elements on
// any device, with the parameter's initial values, rounded to its dtype. A GPU
// generates its own values.
//
// Element i depends only on (seed, spec.name, spec.init, spec.shape, i): not on
// the device, the number of threads, the other parameters or their layout.
void FillInitialValues(const ParameterSpec& spec, uint64_t seed,
                       const at::Tensor& values);

// The same FP32 values in two halves (split_float.h): `high` in BF16, `low` in
// INT16.
void FillInitialValues(const ParameterSpec& spec, uint64_t seed,
                       const at::Tensor& high, const at::Tensor& low);

}  // namespace tessera

#endif  // FRAMEWORK_PARAMS_INITIAL_VALUES_H_
