#ifndef FRAMEWORK_OPTIM_OPTIMIZER_TASKS_H_
#define FRAMEWORK_OPTIM_OPTIMIZER_TASKS_H_

#include <cstdint>
#include <vector>

#include "framework/cuda/device.h"
#include "framework/optim/muon_math.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/precision_policy.h"
#include "framework/program/schedule.h"

namespace tessera {

// The optimizer's work in a step, as tasks (schedule.h). `gradients` is the
// type of the trained part of the flat buffer.

// SumOfSquares of all gradients.
Task SumOfSquaresTask(const TensorType& gradients, const DeviceInfo& device);
// SumOfSquares::Total() and MakeGradientScale().
Task ClipTask();
// The updates of all trained weights: AdamW's, which may be cut where
// parameters begin, and one of each slice of Muon (muon_slices.h), which may
// not. They read and write weights and moments, read gradients and write
// shadows. `muon` is used only if the layout, that of `shards` ranks, has
// blocks for it. With `ema` each also averages the weights of its range.
std::vector<Task> UpdateTasks(const ParameterLayout& layout, int shards,
                              const MuonOptions& muon, bool ema,
                              const PrecisionPolicy& precision,
                              const DeviceInfo& device);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_OPTIMIZER_TASKS_H_
