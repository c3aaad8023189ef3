#ifndef TESTS_TRAINERS_TOY_SESSION_H_
#define TESTS_TRAINERS_TOY_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainers/run/session.h"

namespace tessera {

// A session switches LibTorch's own determinism for the process; this puts it
// back, for the tests after it in the same program.
class KeepDeterminism {
 public:
  KeepDeterminism();
  ~KeepDeterminism();

 private:
  const bool before_;
};

// `config`, a file, brought to a size that takes a moment on a CPU and further
// overridden; what the file says about precision, optimizer, recomputation and
// the rest stays.
RunConfig ToyConfig(const std::string& config,
                    const std::vector<std::string>& more = {});

// The session of it.
std::unique_ptr<Session> Toy(const std::string& config,
                             const std::vector<std::string>& more = {},
                             const SessionOptions& options = {});

// Losses of `steps` steps of `step`, or the session's own, from `first` on.
std::vector<double> Train(Session& session, TrainStep& step, int64_t first,
                          int64_t steps, double lr = 1e-2);
std::vector<double> Train(Session& session, int64_t steps);

// Puts a NaN among the weights of the last feed-forward.
void SpoilAWeight(Session& session);

// Brings `to` where `from` is after `step` steps, by way of a checkpoint.
void ResumeFrom(Session& from, int64_t step, Session& to);

}  // namespace tessera

#endif  // TESTS_TRAINERS_TOY_SESSION_H_
