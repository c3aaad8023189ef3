#ifndef FRAMEWORK_OBSERVE_TRACE_STEP_PROFILE_FORMAT_H_
#define FRAMEWORK_OBSERVE_TRACE_STEP_PROFILE_FORMAT_H_

#include <string>

#include "framework/observe/trace/step_profile.h"
#include "nlohmann/json.hpp"

namespace tessera {

// Every figure. Times are ms per step, shares are of 1; null is not known.
nlohmann::ordered_json StepProfileToJson(const StepProfile& profile);

// Tables of at most 100 columns: classes, phases, blocks, attention, the
// `max_kernels` longest kernels, the counters of the ten longest, and ops,
// folded over blocks.
std::string FormatStepProfile(const StepProfile& profile,
                              size_t max_kernels = 20);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_STEP_PROFILE_FORMAT_H_
