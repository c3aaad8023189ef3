#ifndef TESTS_FRAMEWORK_PROGRAM_TWO_LAYERS_H_
#define TESTS_FRAMEWORK_PROGRAM_TWO_LAYERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "framework/program/program.h"
#include "framework/program/schedule.h"
#include "tests/framework/program/test_ops.h"

namespace tessera::testing {

inline constexpr int64_t kRows = 6, kWidth = 8;

// A program with its input and its loss.
struct Built {
  Program program;
  Value x, loss;
};

// loss = total(square(x W1^T) W2^T), in one scope for each product; x is
// [kRows, kWidth].
Built TwoLayers(const ProgramTarget& target = CpuTarget());

// What each run is: "forward product", "backward product d0 d1", "add".
std::vector<std::string> RunNames(const Schedule& schedule);

}  // namespace tessera::testing

#endif  // TESTS_FRAMEWORK_PROGRAM_TWO_LAYERS_H_
