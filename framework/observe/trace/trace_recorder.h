#ifndef FRAMEWORK_OBSERVE_TRACE_TRACE_RECORDER_H_
#define FRAMEWORK_OBSERVE_TRACE_TRACE_RECORDER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/base/phase_observer.h"
#include "framework/observe/trace/activity_source.h"
#include "framework/observe/trace/graph_ranges.h"
#include "framework/observe/trace/trace.h"

namespace tessera {

// Records traces: the phases that it is told of and, from a source, what the
// device does meanwhile.
class TraceRecorder : public PhaseObserver {
 public:
  explicit TraceRecorder(std::unique_ptr<ActivitySource> source)
      : source_(std::move(source)) {}

  // Between two steps, as the functions below. Turns the source on: what it
  // records up to Keep() is dropped.
  absl::Status Start();
  // What the host issues from now on belongs to the trace.
  void Keep();
  // Waits for the device and ends the trace.
  absl::StatusOr<Trace> Stop();

  void BeginStep(int64_t step) noexcept override;
  void EndStep() noexcept override { End(); }
  void Begin(absl::string_view segment) noexcept override {
    Open(HostRange::Level::kPhase, segment);
  }
  void End() noexcept override;
  void BeginOp(absl::string_view name, OpResults) noexcept override {
    Open(HostRange::Level::kOp, name);
  }
  void EndOp() noexcept override { End(); }

 private:
  void Open(HostRange::Level level, absl::string_view name);
  // The same for a CUDA graph that is being recorded, in a traced step or not.
  void OpenInGraph(HostRange::Level level, absl::string_view name);
  void EndInGraph();

  const std::unique_ptr<ActivitySource> source_;
  bool keeping_ = false;
  int64_t kept_since_ns_ = 0;
  Trace trace_;
  std::unique_ptr<NameTable> names_;
  int open_ = -1;      // the innermost open range
  GraphRanges graph_;  // of the last recorded graph
  int open_in_graph_ = -1;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_TRACE_RECORDER_H_
