#include "bench/measure/instrument_cost.h"

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "bench/measure/timing.h"
#include "framework/base/file.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/statistics.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/device.h"
#include "trainers/run/instruments.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRoundsBefore = 2, kRoundsWith = 6;

struct Round {
  double step_ms = 0, record_ms = 0;
};

class Rounds {
 public:
  Rounds(Session& session, const StudyConfig& study, Batch batch)
      : session_(session), study_(study), batch_(std::move(batch)) {}

  // `folder` is where the instruments write; null for a round without them.
  absl::StatusOr<Round> Run(const std::string* folder);

 private:
  // Steps first, ..., first + count - 1, in milliseconds.
  absl::StatusOr<double> Steps(int first, int count, Instruments* instruments,
                               TrainStep& step);

  Session& session_;
  const StudyConfig& study_;
  const Batch batch_;
};

absl::StatusOr<double> Rounds::Steps(int first, int count,
                                     Instruments* instruments,
                                     TrainStep& step) {
  const c10::Device device = session_.plan().device.device;
  PhaseObserver* const phases =
      instruments == nullptr ? nullptr : instruments->phases();
  absl::Duration time;
  Synchronize(device);
  absl::Time since = MonotonicNow();
  for (int i = first; i < first + count; ++i) {
    {
      const StepScope scope(phases, i);
      RETURN_IF_ERROR(step.Run(batch_, 1e-4));
    }
    if (instruments == nullptr) continue;
    for (const auto& instrument : instruments->all()) {
      if (!instrument->IsDue()) continue;
      Synchronize(device);
      time += MonotonicNow() - since;
      RETURN_IF_ERROR(instrument->Collect());
      since = MonotonicNow();
    }
  }
  Synchronize(device);
  return absl::ToDoubleMilliseconds(time + MonotonicNow() - since);
}

absl::StatusOr<Round> Rounds::Run(const std::string* folder) {
  std::unique_ptr<Instruments> instruments;
  if (folder != nullptr) {
    instruments = std::make_unique<Instruments>(session_.plan(), *folder);
    instruments->SetSession(session_);
  }
  const std::unique_ptr<TrainStep> step = session_.MakeStep(
      instruments == nullptr ? nullptr : instruments->phases());
  RETURN_IF_ERROR(Steps(1, study_.warmup(), instruments.get(), *step).status());
  ASSIGN_OR_RETURN(const double ms,
                   Steps(study_.warmup() + 1, study_.iterations(),
                         instruments.get(), *step));
  Round round{.step_ms = ms / study_.iterations()};
  if (instruments == nullptr) return round;
  StepRecord record{
      .step = study_.warmup() + study_.iterations(),
      .step_ms = round.step_ms,
      .tokens_per_s = session_.plan().tokens_per_step() / round.step_ms * 1e3};
  const absl::Time begin = MonotonicNow();
  for (const auto& instrument : instruments->all()) {
    RETURN_IF_ERROR(instrument->AddTo(&record));
  }
  round.record_ms = MsSince(begin);
  return round;
}

}  // namespace

absl::StatusOr<Json> MeasureInstrumentCost(Session& session,
                                           const StudyConfig& study) {
  ASSIGN_OR_RETURN(Batch batch, session.train_loader().Load(0));
  Rounds rounds(session, study, std::move(batch));
  const std::string folder = (std::filesystem::temp_directory_path() /
                              absl::StrCat("tessera_instruments_", getpid()))
                                 .string();
  const absl::Cleanup remove = [&] { RemoveTree(folder).IgnoreError(); };
  RETURN_IF_ERROR(MakeDirectories(folder));
  std::vector<double> before, without, with, cost, record;
  for (int i = 0; i < kRoundsBefore; ++i) {
    ASSIGN_OR_RETURN(const Round round, rounds.Run(nullptr));
    before.push_back(round.step_ms);
  }
  ASSIGN_OR_RETURN(Round earlier, rounds.Run(nullptr));
  without.push_back(earlier.step_ms);
  for (int i = 0; i < kRoundsWith; ++i) {
    ASSIGN_OR_RETURN(const Round on, rounds.Run(&folder));
    ASSIGN_OR_RETURN(const Round later, rounds.Run(nullptr));
    with.push_back(on.step_ms);
    without.push_back(later.step_ms);
    record.push_back(on.record_ms);
    const double off_ms = (earlier.step_ms + later.step_ms) / 2;
    cost.push_back(100 * (on.step_ms / off_ms - 1));
    earlier = later;
  }
  const double cost_pct = *Median(cost), record_ms = *Median(record);
  const double without_ms = *Median(without);
  return Json{
      {"before_ms", ToJson(Summarize(before))},
      {"without_ms", ToJson(Summarize(without))},
      {"with_ms", ToJson(Summarize(with))},
      {"cost_pct", cost_pct},
      {"record_ms", record_ms},
      {"logged_cost_pct",
       cost_pct + 100 * record_ms /
                      (without_ms *
                       session.plan().config.observe().log_every_steps())}};
}

}  // namespace tessera
