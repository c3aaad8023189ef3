#ifndef TESTS_TESTING_GRADIENT_STATE_H_
#define TESTS_TESTING_GRADIENT_STATE_H_

#include "framework/params/parameter_store.h"

namespace tessera::testing {

// Which parameters' gradients were written since BeginGradients(): what a
// schedule knows of a whole step, for tests that run ops one by one.

// The next write to each gradient of the store assigns.
void BeginGradients(const ParameterStore& store);
// True for the first call since then.
bool ClaimFirstGradWrite(const Parameter& parameter);

}  // namespace tessera::testing

#endif  // TESTS_TESTING_GRADIENT_STATE_H_
