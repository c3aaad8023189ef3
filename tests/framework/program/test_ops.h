#ifndef TESTS_FRAMEWORK_PROGRAM_TEST_OPS_H_
#define TESTS_FRAMEWORK_PROGRAM_TEST_OPS_H_

#include <cstdint>
#include <string>

#include "framework/program/program.h"

namespace tessera::testing {

// Small ops that use every freedom of the interface, each with its gradient.

// y = x W^T; backward reads x and W, dx may take x's memory; separable.
Value Product(ProgramBuilder& b, Value x, Weight weight);
// a + b; passes its gradient on, may be written over b.
Value Sum(ProgramBuilder& b, Value x, Value y);
// -x, in place where it may; backward reads nothing, in place too.
Value Negative(ProgramBuilder& b, Value x);
// x^2; backward reads x, and may be written over it.
Value Square(ProgramBuilder& b, Value x);
// exp(x); backward reads the result, and may be written over it.
Value Exponential(ProgramBuilder& b, Value x);
// The sum of all elements.
Value Total(ProgramBuilder& b, Value x);

// A parameter [out, in] of that name.
Weight Matrix(ProgramBuilder& b, const std::string& name, int64_t out,
              int64_t in);

// A CPU, and everything in FP32.
ProgramTarget CpuTarget();

}  // namespace tessera::testing

#endif  // TESTS_FRAMEWORK_PROGRAM_TEST_OPS_H_
