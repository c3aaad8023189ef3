#ifndef FRAMEWORK_OBSERVE_TRACE_IDLE_TIME_H_
#define FRAMEWORK_OBSERVE_TRACE_IDLE_TIME_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/observe/trace/trace.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The gaps between the activities of a stream, in the classes of
// HolisticTraceAnalysis' get_idle_time_breakdown(). With e the end of the
// activity before the gap:
//
//   host wait     the call that issued the next activity began after e: the
//                 host was late
//   kernel wait   otherwise, and the gap is shorter than
//                 IdleTimeOptions::kernel_wait_below_ns: what starting the next
//                 kernel takes
//   other         the rest: an event, another stream, memory
//
// Time before the first and after the last activity is no gap.
struct IdleTime {
  int64_t host_wait_ns = 0;
  int64_t kernel_wait_ns = 0;
  int64_t other_ns = 0;

  int64_t total() const { return host_wait_ns + kernel_wait_ns + other_ns; }
};

enum class IdleClass { kHostWait, kKernelWait, kOther };

struct IdleTimeOptions {
  // HolisticTraceAnalysis' default is 30 of the trace's units; those of Chrome
  // traces are microseconds.
  int64_t kernel_wait_below_ns = 30'000;
  size_t longest_gaps = 5;
  // Each copy of a CUDA graph may have a stream of its own.
  size_t most_streams = 8;
};

struct StreamIdleTime {
  int device = 0;
  int64_t stream = 0;
  int64_t busy_ns = 0;
  IdleTime idle;
};

struct IdleGap {
  int64_t begin_ns = 0, end_ns = 0;
  IdleClass idle_class = IdleClass::kOther;
  std::string kernel;  // that ended it, by ReadableKernelName()
  std::string path;    // Trace::PathOf() of what issued that

  int64_t ns() const { return end_ns - begin_ns; }
};

// Of the activities whose call is in the trace, except those of CUDA graphs,
// which one call launches together.
struct LaunchStatistics {
  int64_t launches = 0;
  // Activities that took less time than the call that launched them: if they
  // are many, the host cannot keep up.
  int64_t shorter_than_launch = 0;
  // From the end of the call to the begin of the activity; 0 if that began
  // first.
  double mean_delay_us = 0, max_delay_us = 0;
  // How many activities of its stream each activity found launched behind it
  // when it began. A mean near 0: the device waits for the host.
  int64_t min_queue = 0, max_queue = 0;
  double mean_queue = 0;
};

// Where the time from the begin of the first activity to the end of the last
// went. The four times add up to `span_ns`.
struct DeviceTime {
  int64_t span_ns = 0;
  int64_t compute_ns = 0;        // something other than a collective ran
  int64_t communication_ns = 0;  // only collectives ran
  // Nothing ran. Gaps are classed as for a stream, over all streams together.
  IdleTime idle;

  // Shares of `span_ns`, which add up to 1.
  double gpu_bound() const;  // computes, or starts what is already launched
  double cpu_bound() const;  // host wait
  double communication_bound() const;
};

struct IdleTimeReport {
  std::vector<StreamIdleTime> streams;  // the busiest, by device and stream
  int64_t other_streams = 0;            // how many were less busy
  DeviceTime device;
  std::vector<IdleGap> longest;  // gaps of the device, longest first
  LaunchStatistics launches;
};

// `trace` is attributed (AttributeToRanges()).
IdleTimeReport AnalyzeIdleTime(const Trace& trace,
                               const IdleTimeOptions& options = {});

// "93.1 % GPU-bound, 6.4 % CPU-bound, 0.5 % communication-bound".
std::string BoundSentence(const DeviceTime& device);

nlohmann::ordered_json IdleTimeToJson(const IdleTimeReport& report);
// The sentence and tables of at most 100 columns.
std::string FormatIdleTime(const IdleTimeReport& report);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_IDLE_TIME_H_
