#ifndef FRAMEWORK_OPTIM_OPTIMIZER_TASKS_H_
#define FRAMEWORK_OPTIM_OPTIMIZER_TASKS_H_

#include <cstdint>

#include "framework/cuda/device.h"
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
// AdamW over all trained weights: reads and writes them and their moments,
// reads gradients, writes shadows.
Task AdamWTask(const TensorType& gradients, const WeightBytes& trained,
               const PrecisionPolicy& precision, const DeviceInfo& device);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_OPTIMIZER_TASKS_H_
