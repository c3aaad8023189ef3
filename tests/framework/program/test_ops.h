#ifndef TESTS_FRAMEWORK_PROGRAM_TEST_OPS_H_
#define TESTS_FRAMEWORK_PROGRAM_TEST_OPS_H_

#include <cstdint>
#include <string>

#include "framework/program/program.h"

namespace tessera::testing {

// Small ops that use all options of the interface, with their gradients.

// y = x W^T; backward reads x and W, dx may overwrite x; separable.
Value Product(ProgramBuilder& b, Value x, Weight weight);
// a + b; passes its gradient through, may overwrite b.
Value Sum(ProgramBuilder& b, Value x, Value y);
// -x, in place if allowed; backward reads nothing and is in place, too.
Value Negative(ProgramBuilder& b, Value x);
// x^2; backward reads x and may overwrite it.
Value Square(ProgramBuilder& b, Value x);
// exp(x); backward reads the result and may overwrite it.
Value Exponential(ProgramBuilder& b, Value x);
// The sum of all elements.
Value Total(ProgramBuilder& b, Value x);

// A parameter of that name, [out, in].
Weight Matrix(ProgramBuilder& b, const std::string& name, int64_t out,
              int64_t in);

// A CPU with everything in FP32.
ProgramTarget CpuTarget();

}  // namespace tessera::testing

#endif  // TESTS_FRAMEWORK_PROGRAM_TEST_OPS_H_
