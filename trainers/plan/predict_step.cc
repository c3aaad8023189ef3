#include "trainers/plan/predict_step.h"

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_split.h"
#include "framework/base/check.h"

namespace tessera {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The seconds of a task in which all ranks take part. Its cost counts what a
// rank sends and what it receives, as a ring does.
double SecondsOfCollective(const Task& task, const LinkConfig& link) {
  const std::vector<std::string> operations = absl::StrSplit(task.family, ", ");
  double seconds = 0;
  for (const std::string& operation : operations) {
    const double gb_per_s =
        operation == "all_reduce"       ? link.all_reduce_gb_per_s()
        : operation == "reduce_scatter" ? link.reduce_scatter_gb_per_s()
                                        : link.all_gather_gb_per_s();
    const double one_direction = static_cast<double>(task.cost.bytes) / 2 /
                                 static_cast<double>(operations.size());
    seconds += one_direction / (gb_per_s * 1e9) + link.latency_us() * 1e-6;
  }
  return seconds;
}

// Plays a step.
class Timeline {
 public:
  // `seconds` is how long each run takes if nothing else runs. While a
  // collective runs, the others compute at `compute_rate`.
  Timeline(const Schedule& schedule, std::vector<double> seconds,
           double compute_rate)
      : schedule_(schedule),
        compute_rate_(compute_rate),
        left_(std::move(seconds)),
        ready_(left_.size(), kNever),
        ended_(left_.size(), false) {
    for (int run = static_cast<int>(left_.size()) - 1; run >= 0; --run) {
      const StepStream stream = schedule.runs[run].stream;
      streams_[static_cast<int>(stream)].push_back(run);
    }
  }

  // When the last run ends.
  double Play() {
    for (;;) {
      const std::vector<int> running = Running();
      if (running.empty()) break;
      const bool beside = absl::c_any_of(
          running, [this](int run) { return Communicates(run); });
      const auto rate = [&](int run) {
        return beside && !Communicates(run) ? compute_rate_ : 1.0;
      };
      double next = kNever;
      for (const int run : running) {
        next = std::min(next, left_[run] / rate(run));
      }
      for (const int run : running) {
        // The run that decides ends exactly, whatever is rounded.
        const double left = left_[run] / rate(run) - next;
        left_[run] = left * rate(run);
        if (left <= 0) End(run);
      }
      now_ += next;
    }
    TESSERA_CHECK(absl::c_all_of(ended_, [](bool ended) { return ended; }),
                  "runs wait for each other");
    return now_;
  }

 private:
  bool Communicates(int run) const {
    return IsCollective(schedule_, schedule_.runs[run]);
  }
  void End(int run) {
    ended_[run] = true;
    streams_[static_cast<int>(schedule_.runs[run].stream)].pop_back();
    if (run == computing_) computing_ = -1;
  }
  // The first run of each stream, if it communicates and need not wait, and one
  // that computes: that which does already, or which is ready longest.
  std::vector<int> Running() {
    std::vector<int> running;
    const bool computes = computing_ >= 0;
    for (const std::vector<int>& stream : streams_) {
      if (stream.empty()) continue;
      const int run = stream.back();
      const bool waits =
          absl::c_any_of(schedule_.runs[run].waits,
                         [this](int other) { return !ended_[other]; });
      if (waits) continue;
      ready_[run] = std::min(ready_[run], now_);
      if (Communicates(run)) {
        running.push_back(run);
      } else if (computing_ < 0 ||
                 (!computes && ready_[run] < ready_[computing_])) {
        computing_ = run;
      }
    }
    if (computing_ >= 0) running.push_back(computing_);
    return running;
  }

  const Schedule& schedule_;
  const double compute_rate_;
  std::vector<double> left_;   // seconds of each run, alone
  std::vector<double> ready_;  // since when a run could begin
  std::vector<bool> ended_;
  // Runs that have not ended, the first one last.
  std::array<std::vector<int>, kStepStreams> streams_;
  int computing_ = -1;  // the run that has the GPU, if any
  double now_ = 0;
};

}  // namespace

std::optional<StepTime> PredictStep(const Schedule& schedule,
                                    const DeviceRates& rates, double gap,
                                    const LinkConfig& link) {
  StepTime time;
  std::vector<double> seconds;
  for (const StepRun& run : schedule.runs) {
    const bool collective = IsCollective(schedule, run);
    const std::optional<double> once =
        collective ? SecondsOfCollective(schedule.tasks[run.task], link)
                   : RooflineSeconds(schedule.CostOf(run), rates);
    if (!once.has_value()) return std::nullopt;
    seconds.push_back((*once + (collective ? 0 : gap)) *
                      (run.micro_batch == 1 ? schedule.repetitions() : 1));
    (collective ? time.communication : time.compute) += seconds.back();
  }
  time.step =
      Timeline(schedule, std::move(seconds), link.compute_rate()).Play();
  return time;
}

}  // namespace tessera
