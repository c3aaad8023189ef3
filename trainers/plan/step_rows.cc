#include "trainers/plan/step_rows.h"

#include "framework/cuda/device_spec.h"

namespace tessera {

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
  return StepRows(plan.step->train, plan.step->train_lifetimes, RatesOf(plan));
}

}  // namespace tessera
