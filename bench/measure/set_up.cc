#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "bench/measure/measurement.h"
#include "bench/measure/start_up.h"
#include "bench/measure/timing.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"
#include "framework/observe/trace/activity_source.h"

namespace tessera {

using Json = nlohmann::ordered_json;

absl::Status MeasureSetUp(TrainingCell& cell, Json& figures) {
  if (cell.is_open()) return absl::OkStatus();
  const absl::Time begin = MonotonicNow();
  ASSIGN_OR_RETURN(RunPlan plan, cell.Plan());
  RETURN_IF_ERROR(cell.Open(std::move(plan)));
  figures["setup_ms"] = MsSince(begin);
  return absl::OkStatus();
}

absl::Status MeasureStartUp(TrainingCell& cell, Json& figures) {
  const absl::Time begin = MonotonicNow();
  ASSIGN_OR_RETURN(RunPlan plan, cell.Plan());
  const c10::Device device = plan.device.device;
  const double context_ms = MsSince(begin);
  StartUp start_up(
      ActivitiesOf(device, cell.config().observe().trace().max_records()));
  RETURN_IF_ERROR(start_up.Begin());
  if constexpr (kCudaBuild) {
    if (device.is_cuda()) {
      RETURN_IF_ERROR(start_up.Do("cuBLAS's handles", device, [] {
        return StatusFromTorch([] { MakeBlasHandles(); });
      }));
    }
  }
  RETURN_IF_ERROR(start_up.Do("session", device,
                              [&] { return cell.Open(std::move(plan)); }));
  figures["setup_ms"] = MsSince(begin);
  const std::string call = absl::StrReplaceAll(
      absl::AsciiStrToLower(
          TrainingStudy::Call_Name(cell.study().training().call())),
      {{"_", " + "}});
  for (int i = 1; i <= 3; ++i) {
    RETURN_IF_ERROR(start_up.Do(absl::StrCat(call, " ", i), device,
                                [&] { return cell.Call(); }));
  }
  ASSIGN_OR_RETURN(Json parts, start_up.End());
  parts.insert(parts.begin(),
               Json{{"part", "plan and CUDA context"}, {"ms", context_ms}});
  figures["start_up"] = std::move(parts);
  return absl::OkStatus();
}

}  // namespace tessera
