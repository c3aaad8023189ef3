#ifndef TRAINERS_PLAN_DRY_RUN_H_
#define TRAINERS_PLAN_DRY_RUN_H_

#include <string>

#include "nlohmann/json.hpp"
#include "trainers/plan/run_plan.h"
#include "trainers/plan/what_fits.h"

namespace tessera {

// The output of `--dry_run`: device, model, cost of a step, which attention
// backends support the run and why others do not, the memory by category, at
// its peak and by kind of op, and what else fits. Ends with a newline.
std::string FormatDryRun(const RunPlan& plan, const WhatFits& fits);
// FormatDryRun() for programs. Memory is in bytes.
nlohmann::ordered_json DryRunToJson(const RunPlan& plan, const WhatFits& fits);

}  // namespace tessera

#endif  // TRAINERS_PLAN_DRY_RUN_H_
