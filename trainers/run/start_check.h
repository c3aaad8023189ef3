#ifndef TRAINERS_RUN_START_CHECK_H_
#define TRAINERS_RUN_START_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "framework/data/dataset.h"
#include "trainers/plan/run_plan.h"
#include "trainers/run/run_folder.h"

namespace tessera {

// Checks that the run can start from the checkpoint in `folder`, if it has one:
// that it is of this model and, if the run resumes, of this data. Needs no
// memory for the model. `data` is null if it is not known yet.
absl::Status CheckStart(const RunPlan& plan, const RunFolder& folder,
                        const Dataset* data);

// The checks of `train` between its plan and its first step: opens the run
// folder `out` (see OpenRunFolder()), the data and checkpoint.init_from, and
// calls CheckStart(). Changes nothing on disk, so it does not open the default
// text, which may have to be prepared.
absl::Status CheckCanStart(const RunPlan& plan, const std::string& out,
                           absl::string_view resume);

}  // namespace tessera

#endif  // TRAINERS_RUN_START_CHECK_H_
