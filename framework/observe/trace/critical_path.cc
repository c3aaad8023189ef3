#include "framework/observe/trace/critical_path.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "framework/observe/trace/kernel_name.h"
#include "framework/observe/trace/op_place.h"

namespace tessera {
namespace {

using Node = DependencyGraph::Node;
using Wait = DependencyGraph::Wait;
using Kind = PathTime::Kind;

absl::string_view PathKindName(PathTime::Kind kind) {
  constexpr absl::string_view kNames[] = {"device", "host", "launch", "gap"};
  return kNames[static_cast<int>(kind)];
}

int64_t StepsOf(const Trace& trace) {
  return absl::c_count_if(trace.ranges, [](const HostRange& range) {
    return range.level == HostRange::Level::kStep;
  });
}

double MsPerStep(int64_t ns, int64_t steps) {
  return static_cast<double>(ns) * 1e-6 /
         static_cast<double>(std::max<int64_t>(steps, 1));
}

class PathWalker {
 public:
  PathWalker(const Trace& trace, const DependencyGraph& graph)
      : trace_(trace), graph_(graph), places_(PlacesOf(trace)) {}

  CriticalPath Walk() && {
    CriticalPath path{.steps = StepsOf(trace_)};
    const auto last = absl::c_max_element(
        graph_.nodes,
        [](const Node& a, const Node& b) { return a.end_ns < b.end_ns; });
    if (last == graph_.nodes.end()) return path;
    for (const Node* node = &*last; node != nullptr;) {
      node = Before(*node);
    }
    const double recorded_ms =
        StepMsIf(trace_, graph_, [](const auto&) { return 1.0; });
    for (auto& [key, time] : times_) {
      path.ns += time.ns;
      if (time.kind == Kind::kActivity) {
        time.saved_ms = recorded_ms - StepMsWithHalf(time.name);
      }
      path.times.push_back(std::move(time));
    }
    absl::c_stable_sort(path.times, [](const PathTime& a, const PathTime& b) {
      return a.ns > b.ns;
    });
    return path;
  }

 private:
  // Adds what passed since the node that this one waited for, and returns that.
  const Node* Before(const Node& node) {
    const Wait* last = graph_.LastWait(node);
    const Node* before = last == nullptr ? nullptr : &graph_.nodes[last->node];
    if (node.activity >= 0) {
      // It may overlap with the activity before it.
      const int64_t begin_ns = before == nullptr
                                   ? node.begin_ns
                                   : std::max(node.begin_ns, before->end_ns);
      Add(Kind::kActivity, NameOf(node), node.end_ns - begin_ns);
      if (before == nullptr || &node == Start()) return nullptr;
      Add(before->activity >= 0 ? Kind::kGap : Kind::kLaunch, "",
          begin_ns - before->end_ns);
      return before;
    }
    if (before == nullptr) return nullptr;
    if (before->activity >= 0) {
      Add(Kind::kGap, "", node.end_ns - before->end_ns);
    } else {
      Add(Kind::kHost, NameOf(node), node.end_ns - before->end_ns);
    }
    return before;
  }

  double StepMsWithHalf(absl::string_view name) const {
    std::vector<double> factors;  // by Trace::names
    for (const std::string& symbol : trace_.names) {
      factors.push_back(ReadableKernelName(symbol) == name ? 0.5 : 1.0);
    }
    return StepMsIf(trace_, graph_, [&](const DeviceActivity& activity) {
      return factors[activity.name];
    });
  }

  // Where the path ends if it comes by.
  const Node* Start() const {
    return graph_.backlog_end < 0 ? nullptr : &graph_.nodes[graph_.backlog_end];
  }

  std::string NameOf(const Node& node) const {
    if (node.activity >= 0) {
      return ReadableKernelName(
          trace_.name(trace_.activities[node.activity].name));
    }
    const int range = trace_.calls[node.call].range;
    return range < 0 ? OpPlace().phase : places_[range].phase;
  }

  void Add(Kind kind, const std::string& name, int64_t ns) {
    if (ns == 0) return;
    PathTime& time = times_[{kind, name}];
    time.kind = kind;
    time.name = name;
    time.ns += ns;
    ++time.pieces;
  }

  const Trace& trace_;
  const DependencyGraph& graph_;
  const std::vector<OpPlace> places_;
  std::map<std::pair<Kind, std::string>, PathTime> times_;
};

}  // namespace

CriticalPath CriticalPathOf(const Trace& trace, const DependencyGraph& graph) {
  return PathWalker(trace, graph).Walk();
}

double StepMsIf(const Trace& trace, const DependencyGraph& graph,
                absl::FunctionRef<double(const DeviceActivity&)> factor) {
  struct Replayed {
    int64_t end_ns = 0;
    int64_t start_ns = 0;  // of the chain of waits that leads here
  };
  std::vector<Replayed> nodes(graph.nodes.size());
  Replayed last{.end_ns = std::numeric_limits<int64_t>::min()};
  for (const int index : graph.order) {
    const Node& node = graph.nodes[index];
    int64_t begin_ns = node.begin_ns;
    int64_t start_ns = begin_ns;
    if (!node.waits.empty()) {
      begin_ns = std::numeric_limits<int64_t>::min();
      for (const Wait& wait : node.waits) {
        const Replayed& before = nodes[wait.node];
        if (before.end_ns + wait.offset_ns <= begin_ns) continue;
        begin_ns = before.end_ns + wait.offset_ns;
        start_ns = before.start_ns;
      }
      begin_ns += node.delay_ns;
      if (index == graph.backlog_end) start_ns = begin_ns;
    }
    int64_t end_ns = begin_ns;
    if (node.activity >= 0) {
      const auto ns = static_cast<double>(node.end_ns - node.begin_ns);
      end_ns += std::llround(ns * factor(trace.activities[node.activity]));
    }
    nodes[index] = {end_ns, start_ns};
    if (end_ns > last.end_ns) last = nodes[index];
  }
  if (graph.order.empty()) return 0;
  return MsPerStep(last.end_ns - last.start_ns, StepsOf(trace));
}

nlohmann::ordered_json CriticalPathToJson(const CriticalPath& path) {
  nlohmann::ordered_json times = nlohmann::ordered_json::array();
  for (const PathTime& time : path.times) {
    nlohmann::ordered_json row = {
        {"kind", std::string(PathKindName(time.kind))},
        {"name", time.name},
        {"ms", MsPerStep(time.ns, path.steps)},
        {"pieces", time.pieces}};
    if (time.kind == Kind::kActivity) row["saved_ms"] = time.saved_ms;
    times.push_back(std::move(row));
  }
  return {{"steps", path.steps},
          {"ms", MsPerStep(path.ns, path.steps)},
          {"times", std::move(times)}};
}

std::string FormatCriticalPath(const CriticalPath& path, size_t max_rows) {
  std::string text = absl::StrFormat(
      "critical path of %.3f ms per step; 2x faster: how a step changes if "
      "that takes half as long\n%10s%8s%12s  where\n",
      MsPerStep(path.ns, path.steps), "ms", "share", "2x faster");
  for (size_t i = 0; i < std::min(max_rows, path.times.size()); ++i) {
    const PathTime& time = path.times[i];
    absl::StrAppendFormat(
        &text, "%10.3f%7.1f%%%12s  %s\n", MsPerStep(time.ns, path.steps),
        100 * static_cast<double>(time.ns) / static_cast<double>(path.ns),
        time.kind == Kind::kActivity ? absl::StrFormat("%+.3f", -time.saved_ms)
                                     : "",
        absl::StrFormat("%-8s%.60s", PathKindName(time.kind), time.name));
  }
  return text;
}

}  // namespace tessera
