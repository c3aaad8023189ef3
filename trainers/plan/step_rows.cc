#include "trainers/plan/step_rows.h"

#include <utility>

#include "framework/cuda/device_spec.h"

namespace tessera {
namespace {

// The rows after the backward pass. `bytes` are those of the flat buffers.
std::vector<StepRow> UpdateRows(const RunPlan& plan) {
  const MemoryReport& memory = plan.memory.report;
  const at::ScalarType dtype = plan.precision[OpClass::kGradient];
  const int64_t count =
      memory.gradients / static_cast<int64_t>(c10::elementSize(dtype));
  const double trained = static_cast<double>(count);
  const std::string gradients = ToString(TensorType{{count}, dtype});
  const std::string own = plan.device.is_cuda() ? "own kernel" : "host loops";
  std::vector<StepRow> rows;
  if (const int ranks = plan.world.world_size; ranks > 1) {
    // Ring all-reduce: each rank sends and receives 2 (R - 1) / R of the
    // buffer.
    rows.push_back(
        {.phase = "reduce",
         .name = "gradients",
         .kind = "all_reduce",
         .kernel = plan.device.is_cuda() ? "NCCL" : "Gloo",
         .output = gradients,
         .cost = {.flops = trained,
                  .bytes = 4 * memory.gradients * (ranks - 1) / ranks}});
  }
  rows.push_back({.phase = "clip",
                  .name = "gradient norm",
                  .kind = "sum_of_squares",
                  .kernel = own,
                  .output = "FP32 []",
                  .cost = {.flops = 2 * trained, .bytes = memory.gradients}});
  // Weights and moments are read and written, the shadow is written. The frozen
  // parts are not touched.
  const WeightBytes weights =
      PlaceParameters(plan.parameters, WeightDtypesOf(plan.precision))
          ->trainable_weights;
  rows.push_back(
      {.phase = "optimizer",
       .name = "weights",
       .kind = "adamw",
       .kernel = own,
       .output = ToString(
           TensorType{{count}, plan.precision[OpClass::kMasterWeights]}),
       .cost = {.flops = 12 * trained,
                .bytes = memory.gradients + 2 * memory.optimizer +
                         2 * weights.parameters() + weights.shadow}});
  return rows;
}

}  // namespace

DeviceRates RatesOf(const RunPlan& plan) {
  DeviceRates rates;
  if (const DeviceSpec* spec = FindDeviceSpec(plan.device.name)) {
    rates.product_flops_per_s =
        spec->tflops(ProductKindOf(plan.precision)) * 1e12;
    rates.vector_flops_per_s = spec->fp32 * 1e12;
    rates.bytes_per_s = spec->memory_gb_per_s * 1e9;
  }
  if (plan.config.observe().has_peak_tflops()) {
    rates.product_flops_per_s = plan.config.observe().peak_tflops() * 1e12;
  }
  return rates;
}

std::vector<StepRow> RowsOfStep(const RunPlan& plan) {
  const DeviceRates rates = RatesOf(plan);
  const StepPlan& step = *plan.step;
  std::vector<StepRow> rows = StepRows(step.train, step.train_lifetimes, rates);
  for (StepRow& row : rows) row.count *= step.micro_batches;
  for (StepRow& row : UpdateRows(plan)) {
    row.seconds = RooflineSeconds(row.cost, rates);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace tessera
