#ifndef TESTS_FRAMEWORK_OBSERVE_TRACE_TRACE_BUILDER_H_
#define TESTS_FRAMEWORK_OBSERVE_TRACE_TRACE_BUILDER_H_

#include <cstdint>
#include <utility>

#include "absl/strings/string_view.h"
#include "framework/observe/trace/trace.h"

namespace tessera::testing {

// Builds traces whose times a test writes down. Every function returns the
// index of what it adds.
class TraceBuilder {
 public:
  using Level = HostRange::Level;
  using Kind = DeviceActivity::Kind;

  TraceBuilder() : names_(&trace_.names) {
    trace_.thread = kThread;
    trace_.device = "NVIDIA H200";
  }

  int Range(Level level, absl::string_view name, int parent, int64_t begin_ns,
            int64_t end_ns) {
    trace_.ranges.push_back({.level = level,
                             .name = names_.IndexOf(name),
                             .parent = parent,
                             .begin_ns = begin_ns,
                             .end_ns = end_ns});
    return static_cast<int>(trace_.ranges.size()) - 1;
  }
  int Step(absl::string_view name, int64_t begin_ns, int64_t end_ns) {
    return Range(Level::kStep, name, -1, begin_ns, end_ns);
  }

  int Call(absl::string_view name, uint32_t correlation, int64_t begin_ns,
           int64_t end_ns, uint32_t thread = kThread) {
    trace_.calls.push_back({.name = names_.IndexOf(name),
                            .begin_ns = begin_ns,
                            .end_ns = end_ns,
                            .thread = thread,
                            .correlation = correlation});
    return static_cast<int>(trace_.calls.size()) - 1;
  }
  // A call under a correlation of its own, which is returned.
  uint32_t Launch(int64_t begin_ns, int64_t end_ns) {
    Call("cudaLaunchKernel", ++correlation_, begin_ns, end_ns);
    return correlation_;
  }

  int Activity(Kind kind, absl::string_view name, uint32_t correlation,
               int64_t begin_ns, int64_t end_ns, int64_t stream = 7) {
    trace_.activities.push_back({.kind = kind,
                                 .name = names_.IndexOf(name),
                                 .begin_ns = begin_ns,
                                 .end_ns = end_ns,
                                 .stream = stream,
                                 .correlation = correlation});
    return static_cast<int>(trace_.activities.size()) - 1;
  }
  int Kernel(absl::string_view name, uint32_t correlation, int64_t begin_ns,
             int64_t end_ns, int64_t stream = 7) {
    return Activity(Kind::kKernel, name, correlation, begin_ns, end_ns, stream);
  }

  // What was added so far, in order and attributed.
  Trace Build() const {
    Trace trace = trace_;
    AttributeToRanges(&trace);
    return trace;
  }

  Trace& trace() { return trace_; }

  static constexpr uint32_t kThread = 4001;

 private:
  Trace trace_;
  NameTable names_;
  uint32_t correlation_ = 0;
};

}  // namespace tessera::testing

#endif  // TESTS_FRAMEWORK_OBSERVE_TRACE_TRACE_BUILDER_H_
