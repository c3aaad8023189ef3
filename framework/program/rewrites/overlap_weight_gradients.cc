#include "framework/program/rewrites/overlap_weight_gradients.h"

#include <utility>
#include <vector>

#include "framework/base/check.h"

namespace tessera {

void OverlapWeightGradients(Schedule* schedule) {
  std::vector<StepRun> runs;
  std::vector<int> beside;  // indices into runs
  for (StepRun& run : schedule->runs) {
    TESSERA_CHECK(run.waits.empty(), "rewritten before");
    StepRun of_weights = run, of_values = run;
    for (size_t i = 0; i < run.d_operands.size(); ++i) {
      (run.d_operands[i].parameter >= 0 ? of_values : of_weights)
          .d_operands[i] = {};
    }
    if (run.kind != StepRun::Kind::kBackward ||
        !schedule->program->ops()[run.op].op->separable() ||
        of_weights.wanted().empty() || of_values.wanted().empty()) {
      runs.push_back(std::move(run));
      continue;
    }
    beside.push_back(static_cast<int>(runs.size()));
    of_weights.stream = StepStream::kWeightGradients;
    if (beside.size() > 2) of_values.waits = {beside[beside.size() - 3]};
    for (StepRun* const part : {&of_weights, &of_values}) {
      KeepReads(*schedule->program, part);
      runs.push_back(std::move(*part));
    }
  }
  schedule->runs = std::move(runs);
}

}  // namespace tessera
