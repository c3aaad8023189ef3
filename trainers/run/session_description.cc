#include "trainers/run/session_description.h"

#include "absl/strings/str_cat.h"
#include "framework/checkpoint/checkpoint_config.h"
#include "framework/cuda/device_spec.h"
#include "framework/observe/memory_report.h"
#include "trainers/build_info.h"
#include "trainers/config/config_loader.h"

namespace tessera {

RunDescription Describe(const Session& session, const std::string& run_folder,
                        int64_t first_step) {
  const RunPlan& plan = session.plan();
  const TrainingConfig& training = plan.config.training();
  return {.simulated = DescribeSimulation(plan.world),
          .build = BuildSummary(),
          .config_hash = ConfigHash(plan.config),
          .device = plan.device.name,
          .world_size = plan.world.world_size,
          .layout = plan.world.world_size == 1
                        ? ""
                        : absl::StrCat(Describe(plan.layout),
                                       plan.world.simulated ? "" : "; ",
                                       session.group().library()),
          .precision = std::string(plan.precision.name()),
          .attention = absl::StrCat(
              plan.backend.backend->name(),
              plan.config.attention().backend() == AttentionConfig::AUTO
                  ? " (chosen by AUTO; --dry_run says why)"
                  : " (as configured)"),
          .execution = absl::StrCat(DescribeExecution(plan),
                                    plan.products->summary.empty() ? "" : "; ",
                                    plan.products->summary),
          .data = session.data().train->description(),
          .run_folder = run_folder,
          .saves = plan.world.simulated
                       ? "none, because the run is simulated"
                       : DescribeSaves(plan.config.checkpoint()),
          .parameters = plan.num_parameters,
          .batch_size = training.batch_size(),
          .context = plan.shape.context,
          .micro_batches = training.micro_batches(),
          .first_step = first_step,
          .steps = training.steps(),
          .flops_per_token = plan.flops_per_token,
          .peak_tflops = PeakTflops(plan),
          .memory_table = FormatMemoryTable(plan.memory.report)};
}

std::optional<double> PeakTflops(const RunPlan& plan) {
  const ObserveConfig& observe = plan.config.observe();
  if (observe.has_peak_tflops()) return observe.peak_tflops();
  const DeviceSpec* const spec = FindDeviceSpec(plan.device.name);
  if (spec == nullptr) return std::nullopt;
  return spec->tflops(ProductKindOf(plan.precision));
}

}  // namespace tessera
