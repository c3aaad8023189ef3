#include "trainers/run/trainer.h"

#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "framework/base/file.h"
#include "framework/base/phase_observer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainers/toy_session.h"
#include "trainers/run/run_folder.h"

namespace tessera {
namespace {

// Far longer than the toy's steps, also on a busy machine.
constexpr absl::Duration kStartUp = absl::Seconds(5);

// Makes a process's first step take longer, as loading libraries does.
class SlowStart : public PhaseObserver {
 public:
  explicit SlowStart(std::string first_step) : first_(std::move(first_step)) {}
  void Begin(absl::string_view segment) override {
    if (segment == first_) absl::SleepFor(kStartUp);
  }
  void End() override {}

 private:
  const std::string first_;
};

// step_ms of every record after training up to step `steps`.
std::vector<double> StepTimes(const std::string& folder, int steps,
                              int first_step) {
  const KeepDeterminism keep;
  SlowStart phases(absl::StrCat("step_", first_step));
  auto session = Toy("configs/tiny_cpu.pbtxt",
                     {absl::StrCat("training.steps=", steps),
                      "training.sample_tokens_at_end=0",
                      "training.eval_batches=0", "observe.log_every_steps=3"});
  auto run = OpenRunFolder(folder, "auto", /*writes=*/true);
  EXPECT_TRUE(run.ok()) << run.status();
  auto trainer = Trainer::Create(std::move(session), *std::move(run), &phases);
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  const absl::Status status = (*trainer)->Run();
  EXPECT_TRUE(status.ok()) << status;
  std::vector<double> times;
  std::ifstream log(folder + "/run.jsonl");
  for (std::string line; std::getline(log, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    if (record["type"] == "step") times.push_back(record["step_ms"]);
  }
  return times;
}

TEST(TrainerTest, TheFirstRecordIsOfStepsWithoutTheStartUp) {
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/trainer_", getpid());
  ASSERT_TRUE(RemoveTree(folder).ok());
  // A third of the start-up would be in a record of three steps.
  const double bound = absl::ToDoubleMilliseconds(kStartUp) / 3;
  std::vector<double> times = StepTimes(folder, 6, 1);
  ASSERT_EQ(times.size(), 2u);
  EXPECT_LT(times[0], bound);
  // The same for a process that resumes, except where its first step is all
  // that the record has.
  times = StepTimes(folder, 9, 7);
  ASSERT_EQ(times.size(), 3u);
  EXPECT_LT(times[2], bound);
  times = StepTimes(folder, 10, 10);
  ASSERT_EQ(times.size(), 4u);
  EXPECT_GT(times[3], bound);
}

}  // namespace
}  // namespace tessera
