#include "absl/time/time.h"
#include "attention_backends/compiled_fused/banded_product.h"
#include "attention_backends/compiled_fused/softmax_compiler.h"
#include "bench/measure/measurement.h"
#include "bench/measure/timing.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/float_type_of.h"

namespace tessera {

absl::Status MeasureCompilation(TrainingCell& cell,
                                nlohmann::ordered_json& figures) {
  if constexpr (kCudaBuild) {
    const RunPlan& plan = cell.plan();
    if (!cell.device().is_cuda() ||
        plan.backend.backend->name() != "COMPILED_FUSED") {
      return absl::OkStatus();
    }
    const fused::SoftmaxSpec spec = {.type = FloatTypeOf(plan.attention.dtype),
                                     .mask = fused::MaskOf(plan.attention)};
    const absl::Time begin = MonotonicNow();
    RETURN_IF_ERROR(fused::CompileSoftmax(spec, plan.device.compute_capability,
                                          /*cache=*/nullptr)
                        .status());
    figures["compile_ms"] = MsSince(begin);
  }
  return absl::OkStatus();
}

}  // namespace tessera
