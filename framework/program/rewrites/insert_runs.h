#ifndef FRAMEWORK_PROGRAM_REWRITES_INSERT_RUNS_H_
#define FRAMEWORK_PROGRAM_REWRITES_INSERT_RUNS_H_

#include <map>
#include <vector>

#include "framework/program/schedule.h"

namespace tessera {

// Runs to insert, by the run of the list that they come before or after. Runs
// with the same place keep their order. Waits are numbers of runs of the list
// as it was.
using InsertedRuns = std::multimap<int, StepRun>;

// Inserts runs into a list and takes out those for which `removed` is true, for
// which no run waits. Returns the new numbers of the others, by their old ones.
std::vector<int> InsertRuns(const InsertedRuns& before,
                            const InsertedRuns& after,
                            const std::vector<bool>& removed,
                            Schedule* schedule);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_INSERT_RUNS_H_
