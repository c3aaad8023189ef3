#ifndef TESTS_TRAINERS_TOY_RANKS_H_
#define TESTS_TRAINERS_TOY_RANKS_H_

#include <string>
#include <vector>

#include "framework/dist/world.h"

namespace tessera {

// A run of the config of ToyFlags() (program.h).
struct ToyRun {
  std::string folder;
  std::vector<std::string> sets;  // overrides after those of ToySets()
  std::string resume = "never";   // as in OpenRunFolder()
};

// Returns once all ranks have called it with the same `name`, which is new in
// the folder `notes`. A rank that does several runs calls it after each, with
// the run's group destroyed: else a rank could join the old group again.
void AwaitOtherRanks(const WorldInfo& world, const std::string& notes,
                     const std::string& name);

// Does the runs one after another, each with `ranks` ranks, which are the same
// processes for all runs: to start a process takes longer than a toy run. The
// calling test fails if a rank does.
void TrainToys(int ranks, const std::vector<ToyRun>& runs);

}  // namespace tessera

#endif  // TESTS_TRAINERS_TOY_RANKS_H_
