#include "framework/optim/optimizer_tasks.h"

#include "c10/core/ScalarType.h"

namespace tessera {
namespace {

const char* KernelOn(const DeviceInfo& device) {
  return device.is_cuda() ? "own kernel" : "host loops";
}

}  // namespace

Task SumOfSquaresTask(const TensorType& gradients, const DeviceInfo& device) {
  return {.kind = Task::Kind::kSumOfSquares,
          .name = "gradient norm",
          .family = "sum_of_squares",
          .kernel = KernelOn(device),
          .output = {{}, at::kFloat},
          .cost = {.flops = 2.0 * static_cast<double>(gradients.numel()),
                   .bytes = gradients.bytes()},
          .range = {0, gradients.bytes()}};
}

Task ClipTask() {
  return {.kind = Task::Kind::kClip,
          .name = "gradient scale",
          .family = "clip",
          .kernel = "ATen",
          .output = {{}, at::kFloat}};
}

Task AdamWTask(const TensorType& gradients, const WeightBytes& trained,
               const PrecisionPolicy& precision, const DeviceInfo& device) {
  const int64_t count = gradients.numel();
  const int64_t moments = 2 * count *
                          static_cast<int64_t>(c10::elementSize(
                              precision[OpClass::kOptimizerState]));
  return {.kind = Task::Kind::kUpdate,
          .name = "weights",
          .family = "adamw",
          .kernel = KernelOn(device),
          .output = {{count}, precision[OpClass::kMasterWeights]},
          .cost = {.flops = 12.0 * static_cast<double>(count),
                   .bytes = gradients.bytes() + 2 * moments +
                            2 * trained.parameters() + trained.shadow},
          .range = {0, gradients.bytes()}};
}

}  // namespace tessera
