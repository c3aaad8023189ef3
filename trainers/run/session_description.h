#ifndef TRAINERS_RUN_SESSION_DESCRIPTION_H_
#define TRAINERS_RUN_SESSION_DESCRIPTION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "framework/observe/run_description.h"
#include "trainers/plan/run_plan.h"
#include "trainers/run/session.h"

namespace tessera {

// Describes a run of `session` to its observers before its first step.
// `first_step` optimizer steps are already done.
RunDescription Describe(const Session& session, const std::string& run_folder,
                        int64_t first_step);

// The peak that MFU is measured against: observe.peak_tflops, or the data
// sheet's of a listed device; nullopt for any other device.
std::optional<double> PeakTflops(const RunPlan& plan);

}  // namespace tessera

#endif  // TRAINERS_RUN_SESSION_DESCRIPTION_H_
