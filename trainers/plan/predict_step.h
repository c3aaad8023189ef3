#ifndef TRAINERS_PLAN_PREDICT_STEP_H_
#define TRAINERS_PLAN_PREDICT_STEP_H_

#include <algorithm>
#include <optional>

#include "framework/program/printer.h"
#include "framework/program/schedule.h"
#include "trainers/plan/cluster.pb.h"

namespace tessera {

// Predicted times of a rank's step, in seconds.
struct StepTime {
  double step = 0;
  double compute = 0;        // sum over the runs that compute, without others
  double communication = 0;  // sum over the collectives

  // The part of the step in which the GPU waits for other ranks, or computes
  // slower beside a collective.
  double waiting() const { return std::max(0.0, step - compute); }
};

// Predicts a step from its list:
//   a run computes for   RooflineSeconds() at `rates` + `gap` seconds, and
//                        longer while a collective runs beside it: at
//                        `link.compute_rate`
//   a collective takes   bytes in one direction / bandwidth of `link` + latency
// A run begins when the runs before it in its stream and those that it waits
// for have ended. Runs that compute have the GPU one at a time, in the order in
// which they become ready. The host is never late. Absent if a rate is unknown
// that a run needs.
std::optional<StepTime> PredictStep(const Schedule& schedule,
                                    const DeviceRates& rates, double gap,
                                    const LinkConfig& link);

}  // namespace tessera

#endif  // TRAINERS_PLAN_PREDICT_STEP_H_
