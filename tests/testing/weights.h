#ifndef TESTS_TESTING_WEIGHTS_H_
#define TESTS_TESTING_WEIGHTS_H_

#include "ATen/core/Tensor.h"
#include "framework/params/parameter_store.h"

namespace tessera {

// The master values of a store as one flat tensor in host memory, each slice at
// its offset, with zeros in the gaps.
at::Tensor WeightsOf(const ParameterStore& store);

// Overwrites every slice from such a tensor.
void SetWeights(const at::Tensor& flat, ParameterStore* store);

}  // namespace tessera

#endif  // TESTS_TESTING_WEIGHTS_H_
