#ifndef TESTS_TESTING_GRADIENT_STATE_H_
#define TESTS_TESTING_GRADIENT_STATE_H_

#include "framework/params/parameter_store.h"

namespace tessera::testing {

// Records which parameters' gradients were written since BeginGradients(), for
// tests that run single ops; a schedule knows this for a whole step.

// The next write to each gradient of the store assigns.
void BeginGradients(const ParameterStore& store);
// True for the first call per parameter since then.
bool ClaimFirstGradWrite(const Parameter& parameter);

}  // namespace tessera::testing

#endif  // TESTS_TESTING_GRADIENT_STATE_H_
