#include "framework/observe/report/run_records.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/observe/report/figures.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kStart[] = R"({"type":"run","config":"a: 1"})";

class RunRecordsTest : public testing::Test {
 protected:
  RunRecordsTest()
      : folder_(absl::StrCat(
            testing::TempDir(), "/run_records.",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    EXPECT_TRUE(RemoveTree(folder_).ok());
    EXPECT_TRUE(MakeDirectories(folder_).ok());
  }

  void Write(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(folder_, "/", name);
    ASSERT_TRUE(MakeDirectories(path.substr(0, path.rfind('/'))).ok());
    std::ofstream(path) << text;
  }

  std::string Error() {
    return std::string(ReadRunRecords(folder_).status().message());
  }

  const std::string folder_;
};

TEST_F(RunRecordsTest, AResumeSupersedesLaterRecords) {
  Write("run.jsonl", absl::StrCat(kStart, R"(
{"type":"step","step":10,"loss":3}
{"type":"step","step":20,"loss":2}
{"type":"memory","step":10}
{"type":"memory","step":20}
{"type":"eval","step":20,"loss":2}
{"type":"eval","step":10,"set":"code","loss":4}
{"type":"eval","step":20,"set":"code","loss":3}
{"type":"saved","step":1,"bytes":512}
{"type":"resume","step":10,"config":"a: 2"}
{"type":"something_new"}
{"type":"step","step":20,"loss":null}
{"type":"step","step":30,"loss":1.5}
{"type":"step","step":40,"lo)"));
  const auto run = ReadRunRecords(folder_ + "/");
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_THAT(NumbersAt(run->steps, "step"), ElementsAre(10, 20, 30));
  EXPECT_THAT(NumbersAt(run->steps, "loss"), ElementsAre(3, 1.5));
  EXPECT_THAT(run->evaluations, IsEmpty());
  EXPECT_THAT(NumbersAt(run->validation_sets.at("code"), "loss"),
              ElementsAre(4));
  EXPECT_THAT(NumbersAt(run->memory, "step"), ElementsAre(10));
  EXPECT_EQ(run->saved_bytes, 512);
  EXPECT_EQ(TextAt(run->header, "config"), "a: 2");
  EXPECT_EQ(run->resumes, 1);
  EXPECT_THAT(run->name, HasSubstr("run_records."));
}

TEST_F(RunRecordsTest, TakesTheProfileOfTheLastSteps) {
  Write("run.jsonl", absl::StrCat(kStart, "\n"));
  for (const char* name : {"steps_100-102", "steps_20-22"}) {
    Write(absl::StrCat("trace/", name, "/profile.json"), R"({"step":{}})");
  }
  Write("trace/notes.txt", "");
  const auto run = ReadRunRecords(folder_);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->profile_name, "steps_100-102");
  EXPECT_EQ(run->profile_first_step, 100);
  Write("trace/steps_100-102/profile.json", R"({"step":)");
  EXPECT_THAT(Error(), HasSubstr("steps_100-102/profile.json is damaged"));
}

TEST_F(RunRecordsTest, NamesWhatIsNoRun) {
  EXPECT_THAT(Error(), HasSubstr("has neither run.jsonl"));
  Write("run.jsonl", "");
  EXPECT_THAT(Error(), HasSubstr("has no record of a run's start"));
  // Deep enough to overflow the stack of what prints it.
  const std::string deep =
      absl::StrCat(R"({"type":"a","x":)", std::string(100'000, '['),
                   std::string(100'000, ']'), "}");
  const std::vector<std::string> broken = {
      "not JSON", "3", R"({"step":1})", R"({"type":"step","step":"x"})", deep};
  for (const std::string& line : broken) {
    Write("run.jsonl", absl::StrCat(kStart, "\n", line, "\n"));
    EXPECT_THAT(Error(), HasSubstr("run.jsonl:2: is no record"))
        << line.substr(0, 40);
  }
  EXPECT_TRUE(RemoveTree(folder_).ok());
  EXPECT_THAT(Error(), HasSubstr("there is no folder"));
}

TEST(LastHalfTest, HasAtLeastOneRecord) {
  EXPECT_EQ(LastHalf({1, 2, 3}).size(), 2);
  EXPECT_EQ(LastHalf({1}).size(), 1);
}

TEST(FiguresTest, FormatsForPeople) {
  EXPECT_EQ(FormatFigure(0.0), "0");
  EXPECT_EQ(FormatFigure(3.14159), "3.142");
  EXPECT_EQ(FormatFigure(999.96), "1000.0");
  EXPECT_EQ(FormatFigure(26945.4), "26,945");
  EXPECT_EQ(FormatFigure(3e-7), "3e-07");
  EXPECT_EQ(FormatFigure(std::nullopt), "n/a");
  EXPECT_EQ(FormatWhole(12.0), "12");
  EXPECT_EQ(FormatWhole(12.5), "12.50");
  EXPECT_EQ(FormatShare(0.4149), "41.5 %");
}

}  // namespace
}  // namespace tessera
