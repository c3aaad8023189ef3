#ifndef TRAINERS_PLAN_DRY_RUN_H_
#define TRAINERS_PLAN_DRY_RUN_H_

#include <string>
#include <vector>

#include "framework/program/printer.h"
#include "trainers/plan/run_plan.h"

namespace tessera {

// The output of `--dry_run`: device, model, cost of a step, which attention
// backends support the run and why others do not, and the memory by category,
// at its peak and by kind of op. Ends with a newline.
std::string FormatDryRun(const RunPlan& plan);

// The peaks of the run's device; absent for a GPU without a data sheet, except
// for what the config says.
DeviceRates RatesOf(const RunPlan& plan);

// Every op of a step of this rank, forward and backward, then reduction,
// clipping and update, with what each costs; folded it is what `--print_step`
// prints. Phases are those of TrainStep.
std::vector<StepRow> RowsOfStep(const RunPlan& plan);

}  // namespace tessera

#endif  // TRAINERS_PLAN_DRY_RUN_H_
