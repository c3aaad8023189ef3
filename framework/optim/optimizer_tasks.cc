#include "framework/optim/optimizer_tasks.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "c10/core/ScalarType.h"
#include "framework/optim/muon_slices.h"

namespace tessera {
namespace {

const char* KernelOn(const DeviceInfo& device) {
  return device.is_cuda() ? "own kernel" : "host loops";
}

int64_t SizeOf(const PrecisionPolicy& precision, OpClass op) {
  return static_cast<int64_t>(c10::elementSize(precision[op]));
}

// What it takes to read and write the weights and to write their shadows.
int64_t WeightTraffic(const WeightBytes& weights) {
  return 2 * weights.parameters() + weights.shadow;
}

// Adds the pass of Ema over `count` weights of `weight_bytes` to their update.
void AddEma(int64_t count, int64_t weight_bytes, Task* update) {
  update->family += ", ema";
  update->cost +=
      {.flops = 3.0 * static_cast<double>(count),
       .bytes = weight_bytes + 2 * count * static_cast<int64_t>(sizeof(float))};
}

Task AdamWTask(const ParameterLayout& layout, const PrecisionPolicy& precision,
               const DeviceInfo& device) {
  const int64_t count = layout.adamw_extent;
  const int64_t gradients = count * SizeOf(precision, OpClass::kGradient);
  const int64_t moments =
      2 * count * SizeOf(precision, OpClass::kOptimizerState);
  return {.kind = Task::Kind::kUpdate,
          .name = "weights",
          .family = "adamw",
          .kernel = KernelOn(device),
          .output = {{count}, precision[OpClass::kMasterWeights]},
          .cost = {.flops = 12.0 * static_cast<double>(count),
                   .bytes = gradients + 2 * moments +
                            WeightTraffic(layout.adamw_weights)},
          .range = {0, gradients}};
}

// The products of newton_schulz.h and the passes over X around them. Where our
// kernel computes them (symmetric_product.h), one half of a symmetric result.
Cost NewtonSchulzCost(const MuonBatch& batch, int steps, at::ScalarType dtype,
                      const DeviceInfo& device) {
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  const auto s = static_cast<double>(batch.gram());
  const double with_x = 2 * static_cast<double>(batch.numel()) * s;
  const int64_t squares = batch.gram() * batch.gram();
  const double symmetric = dtype == at::kHalf &&
                                   device.compute_capability == 90 &&
                                   batch.rows % 8 == 0 && batch.cols % 8 == 0
                               ? 0.5
                               : 1;
  // U is written, read for its norm, and scaled; X is read. NorMuon reads it
  // once more.
  int64_t elements = (batch.row_moments() ? 6 : 5) * batch.numel();
  double flops = 0;
  for (const int run : NewtonSchulzRuns(steps, batch.iterates_gram(dtype))) {
    // A reads X, and the next X reads X and Q, after one step X twice; Z reads
    // A; each further step has three products of small matrices.
    flops += (1 + symmetric) * with_x +
             symmetric * 2 * (run + 3 * (run - 1)) * s * s * s;
    elements += (run > 1 ? 3 : 4) * batch.numel() +
                (2 + 2 * run + 9 * (run - 1)) * squares;
  }
  flops *= static_cast<double>(batch.count());
  return {.flops = flops,
          .bytes = batch.count() * elements * size,
          .product_flops = flops};
}

// Adds the FLOPs of its products to `by_part`.
Task MuonTask(const MuonSlice& slice, const MuonOptions& options,
              int64_t weight_traffic, const PrecisionPolicy& precision,
              const DeviceInfo& device, std::map<int, double>* by_part) {
  const int64_t gradient = SizeOf(precision, OpClass::kGradient);
  const int64_t count = slice.end - slice.begin;
  const at::ScalarType dtype = MuonDtype(precision);
  Task task = {
      .kind = Task::Kind::kUpdate,
      .name = "matrices",
      .family = "muon",
      .kernel = absl::StrCat("ATen, ", KernelOn(device)),
      .output = {{count}, precision[OpClass::kMasterWeights]},
      .cost = {.flops = 12.0 * static_cast<double>(count),
               .bytes =
                   count * (gradient +
                            2 * SizeOf(precision, OpClass::kOptimizerState)) +
                   weight_traffic},
      .range = {slice.begin * gradient, slice.end * gradient},
      .divisible = false};
  for (const MuonBatch& batch : slice.batches) {
    const Cost cost = NewtonSchulzCost(batch, options.ns_steps, dtype, device);
    (*by_part)[batch.part] += cost.flops;
    task.cost += cost;
  }
  return task;
}

// The largest value, as a share of all; 0 if there are none.
double LargestShare(const std::map<int, double>& by_part) {
  double largest = 0, all = 0;
  for (const auto& [part, value] : by_part) {
    largest = std::max(largest, value);
    all += value;
  }
  return all > 0 ? largest / all : 0;
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

std::vector<Task> UpdateTasks(const ParameterLayout& layout, int shards,
                              const MuonOptions& muon, bool ema,
                              const PrecisionPolicy& precision,
                              const DeviceInfo& device) {
  std::vector<Task> tasks;
  if (layout.adamw_extent > 0) {
    tasks.push_back(AdamWTask(layout, precision, device));
    if (ema) {
      AddEma(layout.adamw_extent, layout.adamw_weights.parameters(),
             &tasks.back());
    }
  }
  const int64_t extent = layout.trainable_extent - layout.adamw_extent;
  const int64_t traffic = WeightTraffic(layout.trainable_weights) -
                          WeightTraffic(layout.adamw_weights);
  const size_t first_muon = tasks.size();
  std::map<int, double> flops;  // of products, by part
  for (const MuonSlice& slice :
       MuonSlices(layout.slices, layout.sections, shards)) {
    const double share = static_cast<double>(slice.end - slice.begin) /
                         static_cast<double>(extent);
    tasks.push_back(MuonTask(slice, muon,
                             std::llround(share * static_cast<double>(traffic)),
                             precision, device, &flops));
    if (!ema) continue;
    const double weights =
        share * static_cast<double>(layout.trainable_weights.parameters() -
                                    layout.adamw_weights.parameters());
    AddEma(slice.end - slice.begin, std::llround(weights), &tasks.back());
  }
  // Over all slices, because a rank that has updated its part of one need not
  // wait for the others.
  const double largest_part = LargestShare(flops);
  for (size_t t = first_muon; t < tasks.size(); ++t) {
    tasks[t].largest_part = largest_part;
  }
  return tasks;
}

}  // namespace tessera
