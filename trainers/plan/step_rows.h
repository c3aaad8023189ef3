#ifndef TRAINERS_PLAN_STEP_ROWS_H_
#define TRAINERS_PLAN_STEP_ROWS_H_

#include <vector>

#include "framework/program/printer.h"
#include "trainers/plan/run_plan.h"

namespace tessera {

// The peaks of the run's device; absent for a GPU without a data sheet, except
// for what the config says.
DeviceRates RatesOf(const RunPlan& plan);

// Every op of a step of this rank, forward and backward, then reduction,
// clipping and update, with what each costs; folded it is what `--print_step`
// prints. Phases are those of TrainStep.
std::vector<StepRow> RowsOfStep(const RunPlan& plan);

}  // namespace tessera

#endif  // TRAINERS_PLAN_STEP_ROWS_H_
