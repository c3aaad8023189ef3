#ifndef FRAMEWORK_OBSERVE_TRACE_GRAPH_RANGES_H_
#define FRAMEWORK_OBSERVE_TRACE_GRAPH_RANGES_H_

#include <string>
#include <vector>

#include "framework/observe/trace/trace.h"

namespace tessera {

// The phases and ops in which the nodes of a CUDA graph were recorded. When the
// graph is launched the host passes through none of them.
struct GraphRanges {
  struct Range {
    HostRange::Level level = HostRange::Level::kPhase;
    std::string name;
    int parent = -1;
  };
  std::vector<Range> ranges;
  // Of the nodes that become activities (kernels, copies, fills), in the order
  // of recording: the innermost range; -1: in none.
  std::vector<int> range_of_node;
};

// Attributes the activities of graph launches: for each launch appends the
// graph's ranges to `trace`, inside the range that launched it, and sets
// DeviceActivity::range. `trace` is attributed (AttributeToRanges()).
//
// An activity names its node by a number (CUPTI's graphNodeId). Numbers grow in
// the order of recording. A launch with another number of activities than
// `graph` has nodes is of another graph and stays as it is.
void AttributeToGraph(const GraphRanges& graph, Trace* trace);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_GRAPH_RANGES_H_
