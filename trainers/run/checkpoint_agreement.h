#ifndef TRAINERS_RUN_CHECKPOINT_AGREEMENT_H_
#define TRAINERS_RUN_CHECKPOINT_AGREEMENT_H_

#include "absl/status/status.h"
#include "c10/core/Device.h"
#include "framework/dist/process_group.h"
#include "trainers/run/run_folder.h"

namespace tessera {

// Collective, for ranks that share the verification of checkpoints. A rank may
// have found one damaged and opened an older one, or looked before another run
// had written it. Then the others skip it, too, with a warning, so that every
// byte of the checkpoints in `folder` has been verified by a rank. Does nothing
// if a rank has no checkpoint at all: the ranks then see different folders.
absl::Status AgreeOnCheckpoints(ProcessGroup* group, c10::Device device,
                                RunFolder* folder);

}  // namespace tessera

#endif  // TRAINERS_RUN_CHECKPOINT_AGREEMENT_H_
