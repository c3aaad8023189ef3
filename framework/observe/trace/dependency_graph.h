#ifndef FRAMEWORK_OBSERVE_TRACE_DEPENDENCY_GRAPH_H_
#define FRAMEWORK_OBSERVE_TRACE_DEPENDENCY_GRAPH_H_

#include <cstdint>
#include <vector>

#include "framework/observe/trace/trace.h"

namespace tessera {

// Which calls and activities of a trace waited for which. A trace does not say
// so; these rules are taken for granted:
//
//   a call       begins after the one before it on its thread
//   an activity  begins after its call began, and after the activity before it
//                on its stream. If it began more than 5 us after both, and less
//                than 20 us after an activity on another stream ended, it
//                waited for that one (an event).
//   a call that synchronises (by its name), or whose copy ended before it
//                returned, returns after the last activity that had ended by
//                then, among those launched before
//   a launch     of more than 100 us that returned less than 20 us after an
//                activity ended waited for room in the queue: likewise
//   the first    activity, if it began more than 100 us after its call
//                returned, waited for work from before the trace
struct DependencyGraph {
  struct Wait {
    int node = 0;           // that must have ended
    int64_t offset_ns = 0;  // how long before at least; of launches
  };
  // The begin of a call, its end (both with begin_ns == end_ns), or an
  // activity.
  struct Node {
    int64_t begin_ns = 0, end_ns = 0;
    std::vector<Wait> waits;
    // What passed, as recorded, between the last of the waits and `begin_ns`:
    // the host's own work, the start of a kernel, waking up. Negative if an
    // activity overlaps with the one before it.
    int64_t delay_ns = 0;
    int call = -1;      // Trace::calls
    int activity = -1;  // Trace::activities
  };

  // First those of calls, in pairs of begin and end; then activities.
  std::vector<Node> nodes;
  std::vector<int> order;  // of all nodes: each after those it waits for
  // The first activity, if it waited for work from before the trace: the host
  // was ahead, so the steps take the time from here on. -1 if the device was
  // idle.
  int backlog_end = -1;

  // The wait that ended last in the recording; nullptr for none.
  const Wait* LastWait(const Node& node) const;
};

// `trace` is attributed (AttributeToRanges()).
DependencyGraph BuildDependencyGraph(const Trace& trace);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_DEPENDENCY_GRAPH_H_
