#ifndef FRAMEWORK_OBSERVE_TRACE_CUPTI_PROCESS_H_
#define FRAMEWORK_OBSERVE_TRACE_CUPTI_PROCESS_H_

#include <cupti.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

// What the parts that use CUPTI share. CUDA builds only.

// "cuptiSubscribe: CUPTI_ERROR_INVALID_PARAMETER".
std::string CuptiError(CUptiResult result, absl::string_view call);

// Takes CUPTI out of the process. While CUPTI is attached, every launch is
// slower, also without a recording. Activities can be recorded again later;
// counters cannot.
absl::Status DetachCupti();

// "tessera::f(int)" for "_ZN7tessera1fEi".
std::string DemangledSymbol(const char* symbol);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_CUPTI_PROCESS_H_
