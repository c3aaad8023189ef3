#include "framework/observe/trace/graph_ranges.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/algorithm/container.h"

namespace tessera {
namespace {

// Appends the graph's ranges for one launch. Returns the index of the first.
int AppendRanges(const GraphRanges& graph, const DeviceActivity& launched,
                 NameTable* names, Trace* trace) {
  const auto first = static_cast<int>(trace->ranges.size());
  const auto call = absl::c_find_if(trace->calls, [&](const HostCall& c) {
    return c.correlation == launched.correlation;
  });
  const int64_t begin_ns =
      call == trace->calls.end() ? launched.begin_ns : call->begin_ns;
  for (const GraphRanges::Range& range : graph.ranges) {
    trace->ranges.push_back(
        {.level = range.level,
         .name = names->IndexOf(range.name),
         .parent = range.parent < 0 ? launched.range : first + range.parent,
         .begin_ns = begin_ns,
         .end_ns = begin_ns,
         .in_graph = true});
  }
  return first;
}

}  // namespace

void AttributeToGraph(const GraphRanges& graph, Trace* trace) {
  std::map<uint32_t, std::vector<DeviceActivity*>> launches;
  for (DeviceActivity& activity : trace->activities) {
    if (activity.graph_node != 0) {
      launches[activity.correlation].push_back(&activity);
    }
  }
  NameTable names(&trace->names);
  for (auto& [correlation, nodes] : launches) {
    if (nodes.size() != graph.range_of_node.size()) continue;
    absl::c_sort(nodes, [](const DeviceActivity* a, const DeviceActivity* b) {
      return a->graph_node < b->graph_node;
    });
    const int first = AppendRanges(graph, *nodes[0], &names, trace);
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (graph.range_of_node[i] >= 0) {
        nodes[i]->range = first + graph.range_of_node[i];
      }
    }
  }
}

}  // namespace tessera
