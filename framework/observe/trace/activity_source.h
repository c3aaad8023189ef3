#ifndef FRAMEWORK_OBSERVE_TRACE_ACTIVITY_SOURCE_H_
#define FRAMEWORK_OBSERVE_TRACE_ACTIVITY_SOURCE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "c10/core/Device.h"
#include "framework/observe/trace/trace.h"

namespace tessera {

// Records what a device does. One at a time in a process.
class ActivitySource {
 public:
  virtual ~ActivitySource() = default;
  // FailedPrecondition if recording is not possible, with the reason.
  virtual absl::Status Start() = 0;
  // Waits for the device and adds what was recorded since Start() to `trace`,
  // whose ranges are complete: activities, calls, `dropped`.
  virtual absl::Status Stop(Trace* trace) = 0;
  // An op, a phase or a step has ended, in the thread that trains.
  virtual void AfterOp() {}
  // How many nodes of the CUDA graph that is being recorded will be activities;
  // -1 if none is being recorded on the current stream.
  virtual int64_t NumGraphNodes() const { return -1; }
  // Now, on the clock of the activities.
  virtual int64_t NowNs() const = 0;
};

// Kernels, copies, fills and CUDA calls, by CUPTI's activity API. Keeps at most
// `max_records` of them. CUDA builds only (framework/cuda/cuda_build.h).
std::unique_ptr<ActivitySource> CuptiActivities(int64_t max_records);

// Counts instead (KernelCounters): every kernel becomes an activity with
// Trace::counters. Each kernel runs once, after the one before it has ended; a
// step takes many times longer. CUPTI has little room, so its results are read
// whenever an op ends after `kernels_at_once` kernels or more. Start() and
// Stop() fail with PermissionDenied if this user may not read the counters, and
// with FailedPrecondition in other cases, such as after a recording, whose end
// takes CUPTI out of the process. The kernels of a CUDA graph are not seen.
// CUDA builds only.
std::unique_ptr<ActivitySource> CuptiKernelCounters(
    int64_t kernels_at_once = 500);

// Without a GPU each op is an activity: it runs where the host issues it. Keeps
// at most `max_records` activities and calls.
std::unique_ptr<ActivitySource> HostActivities(int64_t max_records);

// The one of the two that records `device`.
std::unique_ptr<ActivitySource> ActivitiesOf(c10::Device device,
                                             int64_t max_records);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_ACTIVITY_SOURCE_H_
