#include "framework/observe/trace/trace_recorder.h"

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"

namespace tessera {

absl::Status TraceRecorder::Start() {
  trace_ = {};
  names_ = std::make_unique<NameTable>(&trace_.names);
  open_ = -1;
  keeping_ = false;
  return source_->Start();
}

void TraceRecorder::Keep() {
  keeping_ = true;
  kept_since_ns_ = source_->NowNs();
  trace_.thread = CurrentThreadId();
}

absl::StatusOr<Trace> TraceRecorder::Stop() {
  keeping_ = false;
  RETURN_IF_ERROR(source_->Stop(&trace_));
  std::unordered_set<uint32_t> dropped;
  std::erase_if(trace_.calls, [&](const HostCall& call) {
    if (call.begin_ns >= kept_since_ns_) return false;
    dropped.insert(call.correlation);
    return true;
  });
  std::erase_if(trace_.activities, [&](const DeviceActivity& activity) {
    return dropped.contains(activity.correlation);
  });
  AttributeToRanges(&trace_);
  AttributeToGraph(graph_, &trace_);
  return std::move(trace_);
}

void TraceRecorder::BeginStep(int64_t step) noexcept {
  if (keeping_) {
    Open(HostRange::Level::kStep, absl::StrCat("step_", step));
  }
}

void TraceRecorder::Open(HostRange::Level level, absl::string_view name) {
  OpenInGraph(level, name);
  if (!keeping_) return;
  trace_.ranges.push_back({.level = level,
                           .name = names_->IndexOf(name),
                           .parent = open_,
                           .begin_ns = source_->NowNs()});
  open_ = static_cast<int>(trace_.ranges.size()) - 1;
}

void TraceRecorder::OpenInGraph(HostRange::Level level,
                                absl::string_view name) {
  // A recording begins with a phase.
  if (open_in_graph_ < 0 && level != HostRange::Level::kPhase) return;
  const int64_t nodes = source_->NumGraphNodes();
  if (nodes < 0) return;
  if (nodes < static_cast<int64_t>(graph_.range_of_node.size())) graph_ = {};
  graph_.range_of_node.resize(nodes, open_in_graph_);
  graph_.ranges.push_back({level, std::string(name), open_in_graph_});
  open_in_graph_ = static_cast<int>(graph_.ranges.size()) - 1;
}

void TraceRecorder::EndInGraph() {
  if (open_in_graph_ < 0) return;
  const int64_t nodes = source_->NumGraphNodes();
  if (nodes < 0) {  // the recording has failed
    graph_ = {};
    open_in_graph_ = -1;
    return;
  }
  graph_.range_of_node.resize(nodes, open_in_graph_);
  open_in_graph_ = graph_.ranges[open_in_graph_].parent;
}

void TraceRecorder::End() noexcept {
  EndInGraph();
  if (!keeping_) return;
  HostRange& range = trace_.ranges[open_];
  range.end_ns = source_->NowNs();
  open_ = range.parent;
  source_->AfterOp();
}

}  // namespace tessera
