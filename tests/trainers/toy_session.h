#ifndef TESTS_TRAINERS_TOY_SESSION_H_
#define TESTS_TRAINERS_TOY_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainers/run/session.h"

namespace tessera {

// A session changes LibTorch's process-wide determinism. This restores it for
// later tests in the same program.
class KeepDeterminism {
 public:
  KeepDeterminism();
  ~KeepDeterminism();

 private:
  const bool before_;
};

// The config file `config`, reduced to a size that takes a moment on a CPU,
// with further overrides. Precision, optimizer, recomputation etc. are kept.
RunConfig ToyConfig(const std::string& config,
                    const std::vector<std::string>& more = {});

// A config for tests on a GPU, with further overrides: four layers of width
// 1,024 in BF16, 16 x 512 tokens. Its weights do not fit into L2, and what the
// allocator rounds up is little beside them.
RunConfig GpuSizedConfig(const std::vector<std::string>& more);

// The session of a ToyConfig().
std::unique_ptr<Session> Toy(const std::string& config,
                             const std::vector<std::string>& more = {},
                             const SessionOptions& options = {});

// Runs `steps` steps of `step`, or of the session's own, from `first` on, and
// the update that the last one left pending. Returns the losses.
std::vector<double> Train(Session& session, TrainStep& step, int64_t first,
                          int64_t steps, double lr = 1e-2);
std::vector<double> Train(Session& session, int64_t steps);

// Sets a weight of the last feed-forward to NaN.
void SpoilAWeight(ParameterStore& store);

// Adds all tensor files of a state that one rank has and writes.
absl::Status AddState(const TrainingState& state, CheckpointWriter* writer);

// Brings `to` to the state of `from` after `step` steps, through a checkpoint.
void ResumeFrom(Session& from, int64_t step, Session& to);

}  // namespace tessera

#endif  // TESTS_TRAINERS_TOY_SESSION_H_
