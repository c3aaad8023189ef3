#ifndef TRAINERS_DRY_RUN_H_
#define TRAINERS_DRY_RUN_H_

#include <string>

#include "trainers/run_plan.h"

namespace tessera {

// What `--dry_run` prints: device, model, cost of a step, memory by category,
// and every attention backend with the reason why it runs or not. Ends with a
// newline.
std::string FormatDryRun(const RunPlan& plan);

}  // namespace tessera

#endif  // TRAINERS_DRY_RUN_H_
