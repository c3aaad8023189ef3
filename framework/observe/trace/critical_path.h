#ifndef FRAMEWORK_OBSERVE_TRACE_CRITICAL_PATH_H_
#define FRAMEWORK_OBSERVE_TRACE_CRITICAL_PATH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "framework/observe/trace/dependency_graph.h"
#include "framework/observe/trace/trace.h"
#include "nlohmann/json.hpp"

namespace tessera {

// What one kind of work contributes to the critical path.
struct PathTime {
  enum class Kind {
    kActivity,  // a kernel, copy or fill: ReadableKernelName()
    kHost,      // the host, in calls and between them: the phase
    kLaunch,    // from the begin of a launch to that of its activity
    kGap,       // from the end of an activity to what waited for it
  };
  Kind kind = Kind::kHost;
  std::string name;  // empty for launches and gaps
  int64_t ns = 0;
  int64_t pieces = 0;
  // Of activities: how much shorter a step is if every one of this name takes
  // half as long (StepMsIf), in ms.
  double saved_ms = 0;
};

// The chain of waits (DependencyGraph) that leads to the last event of a trace.
// Making anything shorter that does not stand here makes no step faster.
struct CriticalPath {
  int64_t steps = 0;            // that the trace has
  int64_t ns = 0;               // over all of them; the sum of `times`
  std::vector<PathTime> times;  // longest first
};
CriticalPath CriticalPathOf(const Trace& trace, const DependencyGraph& graph);

// Replays a trace with other durations of activities; calls, waits, and the
// delays between waits and what waited stay as they are. Returns the length of
// the critical path divided by the number of steps: with factors of 1 that of
// the recording. A host that was ahead when the trace began keeps that lead.
//
// `factor`: new over recorded duration.
double StepMsIf(const Trace& trace, const DependencyGraph& graph,
                absl::FunctionRef<double(const DeviceActivity&)> factor);

// Times in ms per step.
nlohmann::ordered_json CriticalPathToJson(const CriticalPath& path);
// A table of at most 100 columns with the `max_rows` longest times.
std::string FormatCriticalPath(const CriticalPath& path, size_t max_rows = 10);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_CRITICAL_PATH_H_
