#include "framework/observe/trace/dependency_graph.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace tessera {
namespace {

// Thresholds of the rules in the header.
constexpr int64_t kSoonNs = 20'000;
constexpr int64_t kLateNs = 5'000;
constexpr int64_t kLongLaunchNs = 100'000;
constexpr int64_t kBacklogNs = 100'000;
// What a launch takes at least, if the device was never seen idle.
constexpr int64_t kMaxLaunchNs = 10'000;

using Node = DependencyGraph::Node;
using Wait = DependencyGraph::Wait;

class GraphBuilder {
 public:
  explicit GraphBuilder(const Trace& trace) : trace_(trace) {}

  DependencyGraph Build() && {
    AddCalls();
    AddActivities();
    AddWaitsOfCalls();
    AddWaitsForOtherStreams();
    FindBacklog();
    for (Node& node : graph_.nodes) {
      if (const Wait* last = graph_.LastWait(node)) {
        node.delay_ns = node.begin_ns - EndOf(*last);
      }
    }
    Order();
    return std::move(graph_);
  }

 private:
  int64_t EndOf(const Wait& wait) const {
    return graph_.nodes[wait.node].end_ns + wait.offset_ns;
  }

  int AddNode(Node node) {
    graph_.nodes.push_back(std::move(node));
    return static_cast<int>(graph_.nodes.size()) - 1;
  }

  void AddCalls() {
    std::map<uint32_t, int> end_of_thread;  // node of its last call's end
    for (size_t i = 0; i < trace_.calls.size(); ++i) {
      const HostCall& call = trace_.calls[i];
      const auto last = end_of_thread.find(call.thread);
      const bool is_first = last == end_of_thread.end();
      if (!is_first && call.begin_ns < graph_.nodes[last->second].end_ns) {
        // Within the call before: what it launches, that one does.
        begin_of_.emplace(call.correlation, last->second - 1);
        continue;
      }
      const int index = static_cast<int>(i);
      const int begin = AddNode(
          {.begin_ns = call.begin_ns, .end_ns = call.begin_ns, .call = index});
      if (!is_first) graph_.nodes[begin].waits = {{.node = last->second}};
      const int end = AddNode({.begin_ns = call.end_ns,
                               .end_ns = call.end_ns,
                               .waits = {{.node = begin}},
                               .call = index});
      begin_of_.emplace(call.correlation, begin);
      end_of_thread[call.thread] = end;
    }
  }

  void AddActivities() {
    int64_t launch_ns = kMaxLaunchNs;
    for (const DeviceActivity& activity : trace_.activities) {
      const auto call = begin_of_.find(activity.correlation);
      if (call == begin_of_.end()) continue;
      launch_ns = std::min(
          launch_ns, activity.begin_ns - graph_.nodes[call->second].end_ns);
    }
    launch_ns = std::max<int64_t>(launch_ns, 0);
    std::map<std::pair<int, int64_t>, int> last_of_stream;
    first_activity_ = static_cast<int>(graph_.nodes.size());
    for (size_t i = 0; i < trace_.activities.size(); ++i) {
      const DeviceActivity& activity = trace_.activities[i];
      const int node = AddNode({.begin_ns = activity.begin_ns,
                                .end_ns = activity.end_ns,
                                .activity = static_cast<int>(i)});
      const auto call = begin_of_.find(activity.correlation);
      // The clocks of host and device may differ by a little.
      if (call != begin_of_.end() &&
          graph_.nodes[call->second].end_ns <= activity.begin_ns) {
        graph_.nodes[node].waits.push_back(
            {.node = call->second, .offset_ns = launch_ns});
      }
      const auto [last, is_first] = last_of_stream.emplace(
          std::pair(activity.device, activity.stream), node);
      if (!is_first) {
        graph_.nodes[node].waits.push_back({.node = last->second});
        last->second = node;
      }
      by_end_.push_back(node);
    }
    absl::c_stable_sort(by_end_, [this](int a, int b) {
      return graph_.nodes[a].end_ns < graph_.nodes[b].end_ns;
    });
  }

  const DeviceActivity& ActivityOf(int node) const {
    return trace_.activities[graph_.nodes[node].activity];
  }

  // The activity that ended last by `ns` of those that `is_candidate` accepts,
  // within kSoonNs if `soon`; -1 for none.
  template <typename IsCandidate>
  int LastEnded(int64_t ns, bool soon, const IsCandidate& is_candidate) const {
    auto end = std::upper_bound(
        by_end_.begin(), by_end_.end(), ns,
        [this](int64_t t, int node) { return t < graph_.nodes[node].end_ns; });
    while (end != by_end_.begin()) {
      const int node = *--end;
      if (soon && graph_.nodes[node].end_ns < ns - kSoonNs) return -1;
      if (is_candidate(node)) return node;
    }
    return -1;
  }

  void AddWaitsOfCalls() {
    std::unordered_map<uint32_t, int> copy_of;  // by correlation
    for (int node = first_activity_; node < NumNodes(); ++node) {
      const DeviceActivity& activity = ActivityOf(node);
      if (activity.kind == DeviceActivity::Kind::kCopy) {
        copy_of.emplace(activity.correlation, node);
      }
    }
    for (int node = 1; node < first_activity_; node += 2) {
      Node& end = graph_.nodes[node];
      const HostCall& call = trace_.calls[end.call];
      const auto launched_before = [&](int activity) {
        const auto begin = begin_of_.find(ActivityOf(activity).correlation);
        return begin == begin_of_.end() ||
               graph_.nodes[begin->second].begin_ns < call.begin_ns;
      };
      const auto copy = copy_of.find(call.correlation);
      int waited_for = -1;
      if (absl::StrContains(trace_.name(call.name), "Synchronize")) {
        waited_for = LastEnded(call.end_ns, /*soon=*/false, launched_before);
      } else if (copy != copy_of.end() &&
                 graph_.nodes[copy->second].end_ns <= call.end_ns) {
        waited_for = copy->second;
      } else if (call.end_ns - call.begin_ns > kLongLaunchNs) {
        waited_for = LastEnded(call.end_ns, /*soon=*/true, launched_before);
      }
      if (waited_for >= 0) end.waits.push_back({.node = waited_for});
    }
  }

  void AddWaitsForOtherStreams() {
    for (int node = first_activity_; node < NumNodes(); ++node) {
      Node& next = graph_.nodes[node];
      const Wait* last = graph_.LastWait(next);
      if (last == nullptr || next.begin_ns - EndOf(*last) <= kLateNs) continue;
      const int64_t possible_ns = EndOf(*last);
      const int64_t stream = ActivityOf(node).stream;
      const int other =
          LastEnded(next.begin_ns, /*soon=*/true, [&](int activity) {
            return activity < node && ActivityOf(activity).stream != stream;
          });
      if (other >= 0 && graph_.nodes[other].end_ns > possible_ns) {
        next.waits.push_back({.node = other});
      }
    }
  }

  void FindBacklog() {
    if (first_activity_ == NumNodes()) return;
    const auto call = begin_of_.find(ActivityOf(first_activity_).correlation);
    if (call == begin_of_.end()) return;
    const int64_t returned_ns = graph_.nodes[call->second + 1].end_ns;
    if (graph_.nodes[first_activity_].begin_ns - returned_ns > kBacklogNs) {
      graph_.backlog_end = first_activity_;
    }
  }

  int NumNodes() const { return static_cast<int>(graph_.nodes.size()); }

  // Kahn's algorithm.
  void Order() {
    std::vector<std::vector<int>> waiting(graph_.nodes.size());
    std::vector<size_t> missing(graph_.nodes.size());
    for (int node = 0; node < NumNodes(); ++node) {
      missing[node] = graph_.nodes[node].waits.size();
      if (missing[node] == 0) graph_.order.push_back(node);
      for (const Wait& wait : graph_.nodes[node].waits) {
        waiting[wait.node].push_back(node);
      }
    }
    for (size_t i = 0; i < graph_.order.size(); ++i) {
      for (const int node : waiting[graph_.order[i]]) {
        if (--missing[node] == 0) graph_.order.push_back(node);
      }
    }
  }

  const Trace& trace_;
  DependencyGraph graph_;
  // By correlation: the node of the begin of the call.
  std::unordered_map<uint32_t, int> begin_of_;
  int first_activity_ = 0;   // node; those before it are of calls
  std::vector<int> by_end_;  // nodes of activities
};

}  // namespace

const Wait* DependencyGraph::LastWait(const Node& node) const {
  const Wait* last = nullptr;
  int64_t last_ns = 0;
  for (const Wait& wait : node.waits) {
    const int64_t ns = nodes[wait.node].end_ns + wait.offset_ns;
    if (last == nullptr || ns > last_ns) {
      last = &wait;
      last_ns = ns;
    }
  }
  return last;
}

DependencyGraph BuildDependencyGraph(const Trace& trace) {
  return GraphBuilder(trace).Build();
}

}  // namespace tessera
