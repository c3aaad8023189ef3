#ifndef TESTS_FRAMEWORK_PROGRAM_RANDOM_PROGRAM_H_
#define TESTS_FRAMEWORK_PROGRAM_RANDOM_PROGRAM_H_

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "framework/program/lifetime.h"
#include "framework/program/program.h"
#include "framework/program/rewrites/recompute.h"
#include "framework/program/schedule.h"

namespace tessera::testing {

// A random program of the ops in test_ops.h with the hard cases for lifetimes:
// values with several readers, chains of in-place ops, tied weights, nested
// scopes, frozen weights.
struct RandomProgram {
  // Values are [rows, width], weights [width, width].
  struct Sizes {
    int64_t rows = 0, width = 0;
  };
  // Sizes whose bytes are rarely a multiple of an alignment.
  static Sizes OddSizes(uint64_t seed);

  RandomProgram(uint64_t seed, const Sizes& sizes);

  int Draw(int below) {
    return std::uniform_int_distribution<int>(0, below - 1)(random);
  }
  // About half of the scopes directly below the program.
  std::vector<RecomputedSegment> SomeSegments();

  std::mt19937_64 random;
  std::optional<Program> program;
  Value x, loss;

 private:
  Value Next(ProgramBuilder& b, const std::vector<Value>& values,
             std::vector<Weight>* weights);
};

// The ranges of the parameters' FP32 gradients in a store.
std::vector<GradientRange> RangesOf(const Program& program,
                                    const Sharding& sharding = {});

// A step of several micro-batches (at most three) and ranks, with its tasks.
Schedule StepOf(const Program& program, Value loss, int micro_batches,
                const Sharding& sharding = {});

struct Rewrites {
  std::vector<RecomputedSegment> recompute;
  bool overlap = false, reduce = false, defer = false;
  int zero = 0;  // the stage of ZeRO
  bool data_waits = true;
};
// The list after some rewrites. Slices are so small that most programs have
// several.
Schedule Rewritten(Schedule schedule, const Rewrites& rewrites);

}  // namespace tessera::testing

#endif  // TESTS_FRAMEWORK_PROGRAM_RANDOM_PROGRAM_H_
