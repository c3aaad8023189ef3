#include "trainers/run/checkpoint_agreement.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "trainers/run/numbers_of_ranks.h"

namespace tessera {
namespace {

// The steps of all ranks' checkpoints; -1 of a rank without one.
absl::StatusOr<std::vector<int64_t>> StepsOfRanks(
    const std::unique_ptr<Checkpoint>& checkpoint, c10::Device device,
    ProcessGroup* group) {
  // Unlike the gathering, it waits without limit for a slow verification.
  RETURN_IF_ERROR(group->Barrier());
  return NumbersOfRanks(checkpoint == nullptr ? -1 : checkpoint->step(), device,
                        group);
}

absl::Status AgreeOn(Checkpoint::Part part, const VerifiedShare& share,
                     c10::Device device, ProcessGroup* group,
                     std::unique_ptr<Checkpoint>* checkpoint) {
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> steps,
                     StepsOfRanks(*checkpoint, device, group));
    const auto [oldest, newest] = absl::c_minmax_element(steps);
    if (*oldest == *newest || *oldest < 0) return absl::OkStatus();
    if ((*checkpoint)->step() == *oldest) continue;
    LogWarning(absl::StrCat("skipping checkpoint ", (*checkpoint)->folder(),
                            ": rank ", oldest - steps.begin(), " uses step ",
                            *oldest,
                            ", because it has found this one damaged or has "
                            "not seen it"));
    ASSIGN_OR_RETURN(*checkpoint,
                     NewestCheckpoint(DirectoryOf((*checkpoint)->folder()),
                                      part, share, *oldest));
  }
}

}  // namespace

absl::Status AgreeOnCheckpoints(ProcessGroup* group, c10::Device device,
                                RunFolder* folder) {
  RETURN_IF_ERROR(AgreeOn(Checkpoint::Part::kEverything, folder->share, device,
                          group, &folder->resume_from));
  return AgreeOn(Checkpoint::Part::kModel, folder->share, device, group,
                 &folder->init_from);
}

}  // namespace tessera
