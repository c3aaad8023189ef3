#ifndef BENCH_MEASURE_START_UP_H_
#define BENCH_MEASURE_START_UP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "framework/observe/trace/activity_source.h"
#include "nlohmann/json.hpp"

namespace tessera {

// One part of a process's start, on the clock of its trace.
struct StartUpPart {
  std::string name;  // "step 1"
  int64_t begin_ns = 0, end_ns = 0;
};

// What each part of a start took, by the calls of CUDA that the host was in:
//   [{part, ms, kernel_loading_ms, allocation_ms, graph_ms, waiting_ms,
//     launching_ms, host_ms}]
// The last six add up to `ms`. A kernel is loaded by the call that launches it
// first, or by one that asks for it. Recording a CUDA graph counts as graph_ms,
// except for kernels that it loads and memory that it takes. host_ms is the
// time outside of CUDA.
nlohmann::ordered_json StartUpFigures(const Trace& trace,
                                      const std::vector<StartUpPart>& parts);

// Traces the parts of a process's start.
class StartUp {
 public:
  explicit StartUp(std::unique_ptr<ActivitySource> source)
      : source_(std::move(source)) {}

  // FailedPrecondition if tracing is not possible.
  absl::Status Begin();
  // Makes `call` and waits for the device.
  absl::Status Do(absl::string_view name, c10::Device device,
                  absl::FunctionRef<absl::Status()> call);
  // StartUpFigures() of all parts.
  absl::StatusOr<nlohmann::ordered_json> End();

 private:
  const std::unique_ptr<ActivitySource> source_;
  std::vector<StartUpPart> parts_;
  Trace trace_;
};

// Makes LibTorch's handles of cuBLAS, as its first product would. CUDA builds
// only (framework/cuda/cuda_build.h).
void MakeBlasHandles();

}  // namespace tessera

#endif  // BENCH_MEASURE_START_UP_H_
