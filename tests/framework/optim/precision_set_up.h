#ifndef TESTS_FRAMEWORK_OPTIM_PRECISION_SET_UP_H_
#define TESTS_FRAMEWORK_OPTIM_PRECISION_SET_UP_H_

#include <string>

#include "framework/params/parameter_store.h"
#include "framework/precision/precision_config.h"
#include "gtest/gtest.h"

namespace tessera::testing {

// The policy of a PrecisionConfig.Mode on a GPU, and the options of a store
// with its dtypes.
struct PrecisionSetUp {
  PrecisionPolicy policy;
  ParameterStoreOptions store;
};

inline PrecisionSetUp SetUpPrecision(const std::string& mode, int micro_batches,
                                     at::Device device) {
  PrecisionConfig config;
  PrecisionConfig::Mode value = PrecisionConfig::UNSPECIFIED;
  EXPECT_TRUE(PrecisionConfig::Mode_Parse(mode, &value));
  config.set_mode(value);
  const auto policy =
      CreatePrecisionPolicy(config, micro_batches, /*cuda=*/true);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return {.policy = *policy,
          .store = {.device = device,
                    .weights = {(*policy)[OpClass::kMasterWeights],
                                (*policy)[OpClass::kWeights]},
                    .gradient = (*policy)[OpClass::kGradient]}};
}

}  // namespace tessera::testing

#endif  // TESTS_FRAMEWORK_OPTIM_PRECISION_SET_UP_H_
