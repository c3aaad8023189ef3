#include "framework/observe/run_log.h"

#include <fstream>
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

absl::Time At1000() { return absl::FromUnixSeconds(1000); }

RunHeader Header() {
  return {.config_text = "training { steps: 4 }\n",
          .config_hash = "9f86d081884c7d65",
          .build = {{"tessera", "1.0"}},
          .device = {{"name", "CPU"}}};
}

constexpr char kRunLine[] =
    R"({"type":"run","time":1000.0,"config":"training { steps: 4 }\n",)"
    R"("config_hash":"9f86d081884c7d65",)"
    R"("build":{"tessera":"1.0"},"device":{"name":"CPU"}})"
    "\n";
constexpr char kResumeLine[] =
    R"({"type":"resume","time":1000.0,"step":20,"checkpoint":"c/step_00000020",)"
    R"("config":"training { steps: 4 }\n",)"
    R"("config_hash":"9f86d081884c7d65",)"
    R"("build":{"tessera":"1.0"},"device":{"name":"CPU"}})"
    "\n";

class RunLogTest : public testing::Test {
 protected:
  RunLogTest()
      : path_(absl::StrCat(
            testing::TempDir(), "/run_log_test.",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    EXPECT_TRUE(RemoveTree(path_).ok());
  }

  std::unique_ptr<RunLog> Create() {
    auto log = RunLog::Create(path_, Header(), At1000);
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }

  std::unique_ptr<RunLog> Resume() {
    auto log = RunLog::Resume(path_, Header(), {20, "c/step_00000020"}, At1000);
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }

  std::string Text() { return ReadFile(path_).value(); }

  const std::string path_;
};

TEST_F(RunLogTest, StartsWithTheRun) {
  Create();
  EXPECT_EQ(Text(), kRunLine);
}

TEST_F(RunLogTest, StepsHaveOnlyKnownValues) {
  const auto log = Create();
  StepRecord record = {.step = 10,
                       .loss = 9.25,
                       .grad_norm = 1.5,
                       .lr = 0.001,
                       .step_ms = 12.5,
                       .tokens_per_s = 4096,
                       .tflops = 0.25};
  ASSERT_TRUE(log->OnStepLogged(record).ok());
  record.mfu = 0.5;
  record.peak_gib = 2.0;
  record.loss_scale = 65536;
  record.traced_steps = 3;
  ASSERT_TRUE(log->OnStepLogged(record).ok());
  const std::string known =
      R"({"type":"step","time":1000.0,"step":10,"loss":9.25,"grad_norm":1.5,)"
      R"("lr":0.001,"step_ms":12.5,"tokens_per_s":4096.0,"tflops":0.25)";
  EXPECT_EQ(Text(),
            absl::StrCat(kRunLine, known, "}\n", known,
                         R"(,"mfu":0.5,"peak_gib":2.0,"loss_scale":65536.0,)",
                         R"("traced_steps":3})", "\n"));
}

TEST_F(RunLogTest, StepsHaveWhatTheGpuReports) {
  const auto log = Create();
  StepRecord record = {.step = 10};
  record.gpu = {
      .sm_mhz = 1425, .power_w = 691.5, .throttle_reasons = {"power_cap"}};
  ASSERT_TRUE(log->OnStepLogged(record).ok());
  EXPECT_THAT(Text(),
              testing::EndsWith(
                  R"("tflops":0.0,"gpu":{"sm_mhz":1425.0,"power_w":691.5,)"
                  R"("throttle_reasons":["power_cap"]}})"
                  "\n"));
}

TEST_F(RunLogTest, MemoryIsARecordOfItsOwn) {
  const auto log = Create();
  StepRecord record = {.step = 10};
  record.memory = MemoryRecord{.step = 10};
  ASSERT_TRUE(log->OnStepLogged(record).ok());
  EXPECT_THAT(Text(),
              testing::HasSubstr("\"tflops\":0.0}\n{\"type\":\"memory\","
                                 "\"time\":1000.0,\"step\":10,"));
}

TEST_F(RunLogTest, NonFiniteNumbersAreNull) {
  const auto log = Create();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ASSERT_TRUE(log->OnValidationEnd({.step = 3, .loss = nan}).ok());
  EXPECT_EQ(Text(),
            absl::StrCat(
                kRunLine,
                R"({"type":"eval","time":1000.0,"step":3,"loss":null})", "\n"));
}

TEST_F(RunLogTest, EvaluationsNameTheirSet) {
  const auto log = Create();
  ASSERT_TRUE(log->OnValidationEnd(
                     {.step = 3, .set = "code", .loss = 2, .bits_per_byte = 1})
                  .ok());
  EXPECT_EQ(Text(),
            absl::StrCat(kRunLine,
                         R"({"type":"eval","time":1000.0,"step":3,)"
                         R"("set":"code","loss":2.0,"bits_per_byte":1.0})",
                         "\n"));
}

TEST_F(RunLogTest, SavedBytes) {
  const auto log = Create();
  ASSERT_TRUE(log->OnSavedBytes({.step = 1, .bytes = 92381188}).ok());
  EXPECT_EQ(
      Text(),
      absl::StrCat(
          kRunLine,
          R"({"type":"saved","time":1000.0,"step":1,"bytes":92381188})", "\n"));
}

TEST_F(RunLogTest, OtherRecordsAndOddTextAreOneLineOfJson) {
  const auto log = Create();
  ASSERT_TRUE(log->Log("note", {{"text", "two\nlines \xff"}}).ok());
  const std::string line = Text().substr(sizeof(kRunLine) - 1);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto record = nlohmann::json::parse(line);
  EXPECT_EQ(record["type"], "note");
  EXPECT_EQ(record["text"], "two\nlines \xEF\xBF\xBD");
}

TEST_F(RunLogTest, ARunIsNotOverwritten) {
  Create();
  EXPECT_EQ(RunLog::Create(path_, Header()).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Text(), kRunLine);
}

TEST_F(RunLogTest, ResumeAppends) {
  Create();
  Resume();
  EXPECT_EQ(Text(), absl::StrCat(kRunLine, kResumeLine));
}

TEST_F(RunLogTest, ResumeCreatesAMissingLog) {
  Resume();
  EXPECT_EQ(Text(), kResumeLine);
}

TEST_F(RunLogTest, ResumeRemovesATornLine) {
  Create();
  std::ofstream(path_, std::ios::app) << R"({"type":"st)";
  Resume();
  EXPECT_EQ(Text(), absl::StrCat(kRunLine, kResumeLine));
}

TEST_F(RunLogTest, ResumeRemovesALongTornLine) {
  Create();
  const std::string complete = std::string(5000, 'x') + "\n";
  std::ofstream(path_, std::ios::app) << complete << std::string(10000, 'y');
  Resume();
  EXPECT_EQ(Text(), absl::StrCat(kRunLine, complete, kResumeLine));
}

TEST_F(RunLogTest, AFileThatIsNoLongerAtItsPathIsAnError) {
  const auto log = Create();
  const std::string before = Text();
  EXPECT_TRUE(log->CheckInPlace().ok());
  ASSERT_TRUE(RemoveTree(path_).ok());
  EXPECT_EQ(log->CheckInPlace().code(), absl::StatusCode::kFailedPrecondition);
  const EvalRecord record{.step = 3, .loss = 1};
  const absl::Status status = log->OnValidationEnd(record);
  EXPECT_EQ(status.message(),
            path_ + " was removed, moved or replaced during the run");
  // The log of another run in its place.
  ASSERT_TRUE(WriteFileAtomically(path_, before).ok());
  EXPECT_EQ(log->OnValidationEnd(record), status);
  EXPECT_EQ(Text(), before);
}

TEST_F(RunLogTest, ErrorsNameThePath) {
  const auto log = RunLog::Create(path_ + "/absent/run.jsonl", Header());
  EXPECT_EQ(log.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(log.status().message().find(path_), std::string::npos);
}

}  // namespace
}  // namespace tessera
