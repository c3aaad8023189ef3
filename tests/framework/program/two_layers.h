#ifndef TESTS_FRAMEWORK_PROGRAM_TWO_LAYERS_H_
#define TESTS_FRAMEWORK_PROGRAM_TWO_LAYERS_H_

#include <cstdint>
#include <map>
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

// What each run is: "forward product", "backward product d0 d1", "add", and of
// tasks "sum 0..512", "update 0..512", with a range of bytes, or "task".
std::vector<std::string> RunNames(const Schedule& schedule);

// What each run waits for, by its number.
std::map<int, std::vector<int>> WaitsOf(const Schedule& schedule);

}  // namespace tessera::testing

#endif  // TESTS_FRAMEWORK_PROGRAM_TWO_LAYERS_H_
