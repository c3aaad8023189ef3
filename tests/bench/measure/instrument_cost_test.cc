#include "bench/measure/instrument_cost.h"

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<Json> Measure(const std::vector<std::string>& sets) {
  const std::unique_ptr<Session> session = Toy("configs/tiny_cpu.pbtxt", sets);
  StudyConfig study;
  study.set_warmup(2);
  study.set_iterations(2);
  return MeasureInstrumentCost(*session, study);
}

// Where the instruments write.
std::string Folder() {
  return std::filesystem::temp_directory_path() /
         absl::StrCat("tessera_instruments_", getpid());
}

TEST(InstrumentCostTest, EveryFigureIsThere) {
  const auto cost = Measure({"observe.memory=true"});
  ASSERT_TRUE(cost.ok()) << cost.status();
  for (const char* time : {"before_ms", "without_ms", "with_ms"}) {
    EXPECT_GT((*cost)[time]["min"], 0) << time;
  }
  // A record takes the memory recorder some time, and 10 steps share it.
  EXPECT_GT((*cost)["record_ms"], 0);
  EXPECT_GT((*cost)["logged_cost_pct"], (*cost)["cost_pct"]);
}

TEST(InstrumentCostTest, ATraceIsRecordedAndItsFilesGo) {
  const auto cost =
      Measure({"observe={phases: false "
               "trace {wait: 1 warmup: 1 active: 2}}"});
  ASSERT_TRUE(cost.ok()) << cost.status();
  EXPECT_EQ((*cost)["with_ms"].size(), 6u);
  EXPECT_FALSE(std::filesystem::exists(Folder()));
}

TEST(InstrumentCostTest, AnInstrumentThatCannotWriteIsAnError) {
  ASSERT_TRUE(WriteFileAtomically(Folder(), "in the way").ok());
  const auto cost = Measure({"observe.trace={wait: 0 warmup: 1 active: 1}"});
  EXPECT_FALSE(cost.ok());
}

}  // namespace
}  // namespace tessera
