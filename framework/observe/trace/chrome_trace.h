#ifndef FRAMEWORK_OBSERVE_TRACE_CHROME_TRACE_H_
#define FRAMEWORK_OBSERVE_TRACE_CHROME_TRACE_H_

#include <string>

#include "absl/status/status.h"
#include "framework/observe/trace/trace.h"

namespace tessera {

// Writes a trace as gzipped Chrome JSON, which Perfetto opens and
// HolisticTraceAnalysis reads: events have the categories and arguments that
// Kineto gives them. `path` should end in ".json.gz". Events are written one by
// one: the document is never in memory.
//
//   what              category                   thread
//   steps             user_annotation            trainer ("ProfilerStep#7")
//   phases            user_annotation            trainer
//                     gpu_user_annotation        each stream
//   ops               cpu_op                     trainer
//   CUDA calls        cuda_runtime, cuda_driver  caller
//   kernels           kernel                     stream
//   copies and fills  gpu_memcpy, gpu_memset     stream
//
// Arrows (flow events "ac2g") lead from calls to what they launched. "External
// id" is that of the op which issued a call or activity. Times are microseconds
// after "baseTimeNanoseconds", to the nanosecond.
//
// HolisticTraceAnalysis rounds times to microseconds, which is much for a short
// kernel, unless HTA_DISABLE_NS_ROUNDING=1 is set.
//
// On failure there is no file at `path`. `trace` is attributed
// (AttributeToRanges()).
absl::Status WriteChromeTrace(const Trace& trace, const std::string& path);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_CHROME_TRACE_H_
