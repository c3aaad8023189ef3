#ifndef TRAINERS_PLAN_MEASURED_STEP_H_
#define TRAINERS_PLAN_MEASURED_STEP_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "framework/program/printer.h"
#include "trainers/plan/run_plan.h"

namespace tessera {

// RowsOfStep() with the times of the steps that the run in `folder` traced
// last, and a row for each phase with time outside of ops. Phases in which the
// trace recorded nothing have no times. Errors:
//   NotFound            `folder` is not a run's, or the run traced no step
//   InvalidArgument     the run did another step: another model, batch,
//                       precision, device ...; names what differs
//   FailedPrecondition  the run's program had other ops, or its trace is
//                       incomplete
absl::StatusOr<std::vector<StepRow>> MeasuredRowsOfStep(
    const RunPlan& plan, const std::string& folder);

}  // namespace tessera

#endif  // TRAINERS_PLAN_MEASURED_STEP_H_
