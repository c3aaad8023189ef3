#include "framework/program/stream_order.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/algorithm/container.h"
#include "framework/base/check.h"

namespace tessera {
namespace {

using Clock = std::array<int, kStepStreams>;

// The clocks of all runs, filled in list order.
class Clocks {
 public:
  explicit Clocks(size_t runs) : clocks_(runs) {
    for (Clock& last : last_) last.fill(-1);
  }

  // The clock of `run` from what precedes it in its stream and its waits.
  const Clock& Add(const Schedule& schedule, int run) {
    const StepRun& r = schedule.runs[run];
    Clock& clock = last_[static_cast<int>(r.stream)];
    for (const int wait : r.waits) {
      TESSERA_CHECK(wait < run, "a run waits for a later one");
      for (int s = 0; s < kStepStreams; ++s) {
        clock[s] = std::max(clock[s], clocks_[wait][s]);
      }
    }
    clock[static_cast<int>(r.stream)] = run;
    return clocks_[run] = clock;
  }
  // Whether `earlier` has ended by what is known of the stream of `run`.
  bool IsKnown(const Schedule& schedule, int earlier, StepStream stream) const {
    return last_[static_cast<int>(stream)]
                [static_cast<int>(schedule.runs[earlier].stream)] >= earlier;
  }
  bool IsBefore(const Schedule& schedule, int earlier, int run) const {
    return clocks_[run][static_cast<int>(schedule.runs[earlier].stream)] >=
           earlier;
  }
  std::vector<Clock> Take() && { return std::move(clocks_); }

 private:
  std::vector<Clock> clocks_;
  std::array<Clock, kStepStreams> last_;  // by stream
};

// What runs must not touch at the same time, numbered: values, gradients, the
// gaps between gradients, and the communicator, which serves one stream at a
// time.
class Atoms {
 public:
  explicit Atoms(const Schedule& schedule)
      : schedule_(schedule),
        gradients_(schedule.values.size()),
        gaps_(gradients_ + schedule.program->parameters().size()) {}

  size_t size() const { return gaps_ + 2; }

  struct Touched {
    size_t atom = 0;
    bool writes = false;
  };
  std::vector<Touched> Of(const StepRun& run) const {
    std::vector<Touched> touched;
    if (IsCollective(schedule_, run)) touched.push_back({gaps_ + 1, true});
    if (schedule_.IsTask(run, Task::Kind::kReduce) ||
        schedule_.IsTask(run, Task::Kind::kZero)) {
      touched.push_back({gaps_, true});
    }
    for (const Access& access : AccessesOf(schedule_, run)) {
      touched.push_back({access.value >= 0 ? static_cast<size_t>(access.value)
                                           : gradients_ + static_cast<size_t>(
                                                              access.parameter),
                         access.writes});
    }
    return touched;
  }

 private:
  const Schedule& schedule_;
  const size_t gradients_, gaps_;
};

}  // namespace

StreamOrder::StreamOrder(const Schedule& schedule)
    : schedule_(schedule), joined_at_(schedule.runs.size()) {
  const int runs = static_cast<int>(schedule.runs.size());
  Clocks clocks(schedule.runs.size());
  for (int run = 0; run < runs; ++run) clocks.Add(schedule, run);
  clocks_ = std::move(clocks).Take();
  std::array<std::deque<int>, kStepStreams> under_way;
  for (int run = 0; run < runs; ++run) {
    joined_at_[run] = runs;
    if (schedule.runs[run].stream != StepStream::kMain) {
      under_way[static_cast<int>(schedule.runs[run].stream)].push_back(run);
      continue;
    }
    joined_at_[run] = run;
    for (std::deque<int>& others : under_way) {
      while (!others.empty() && IsBefore(others.front(), run)) {
        joined_at_[others.front()] = run;
        others.pop_front();
      }
    }
  }
}

void AddDataWaits(Schedule* schedule) {
  const Atoms atoms(*schedule);
  std::vector<int> written(atoms.size(), -1);
  std::vector<Clock> read(atoms.size());  // by stream
  for (Clock& last : read) last.fill(-1);
  Clocks clocks(schedule->runs.size());
  for (size_t run = 0; run < schedule->runs.size(); ++run) {
    StepRun& r = schedule->runs[run];
    const int index = static_cast<int>(run);
    // The latest run of each stream that must have ended.
    Clock needed;
    needed.fill(-1);
    const auto need = [&](int earlier) {
      if (earlier < 0) return;
      int& latest = needed[static_cast<int>(schedule->runs[earlier].stream)];
      latest = std::max(latest, earlier);
    };
    for (const auto& [atom, writes] : atoms.Of(r)) {
      need(written[atom]);
      if (writes) {
        for (const int earlier : read[atom]) need(earlier);
        written[atom] = index;
      } else {
        read[atom][static_cast<int>(r.stream)] = index;
      }
    }
    clocks.Add(*schedule, index);
    for (const int earlier : needed) {
      if (earlier < 0 || clocks.IsKnown(*schedule, earlier, r.stream)) continue;
      const bool implied = absl::c_any_of(needed, [&](int other) {
        return other >= 0 && other != earlier &&
               clocks.IsBefore(*schedule, earlier, other);
      });
      if (!implied) r.waits.push_back(earlier);
    }
    clocks.Add(*schedule, index);
  }
}

}  // namespace tessera
