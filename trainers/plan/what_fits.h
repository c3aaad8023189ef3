#ifndef TRAINERS_PLAN_WHAT_FITS_H_
#define TRAINERS_PLAN_WHAT_FITS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainers/plan/run_plan.h"

namespace tessera {

// The largest value of a field that fits on the plan's device, all else equal.
struct LargestValue {
  std::string field;  // "training.batch_size"
  int64_t now = 0;
  int64_t largest = 0;  // 0 if none fits
  // True if the search ended there: more may fit.
  bool at_limit = false;
};

// What a run would need with another value of one field.
struct Alternative {
  std::string value;      // "BLOCK"
  bool current = false;   // the run's own value
  int64_t bytes = 0;      // MemoryReport::total()
  double step_flops = 0;  // of this rank, recomputation included
  // The least time of a step by the roofline model; absent if the device's
  // peaks are unknown.
  std::optional<double> step_seconds;
  LargestValue largest_batch;  // training.batch_size
};

// What people ask before they rent a GPU.
struct WhatFits {
  LargestValue batch;    // in multiples of ranks x micro-batches
  LargestValue context;  // in multiples of 128, or of a shorter context
  LargestValue layers;   // a model of the same width
  int64_t parameters_of_layers = 0;  // of the model with `layers.largest`
  std::vector<Alternative> recompute;
  std::vector<Alternative> backends;  // those that support the run
};

// By planning the run again with other values, about a hundred times.
WhatFits FindWhatFits(const RunPlan& plan);

// The largest n in [1, limit] with bytes(n) <= capacity; 0 if there is none.
// `bytes` does not decrease with n; nullopt means that n cannot run, nor any
// larger one. Needs few calls if `bytes` is nearly linear.
int64_t LargestThatFits(
    const std::function<std::optional<int64_t>(int64_t)>& bytes,
    int64_t capacity, int64_t limit);

}  // namespace tessera

#endif  // TRAINERS_PLAN_WHAT_FITS_H_
