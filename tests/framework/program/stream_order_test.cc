#include "framework/program/stream_order.h"

#include <utility>
#include <vector>

#include "framework/program/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/program/two_layers.h"

namespace tessera::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// A list of tasks that all access the gradient of the first parameter.
class List {
 public:
  List() {
    schedule_.program = &built_.program;
    schedule_.gradients = {{0, 256}, {256, 512}};
  }
  void Add(Task::Kind kind, StepStream stream) {
    StepRun run;
    run.kind = StepRun::Kind::kTask;
    run.task = static_cast<int>(schedule_.tasks.size());
    run.stream = stream;
    schedule_.tasks.push_back({.kind = kind, .range = {0, 256}});
    schedule_.runs.push_back(run);
  }
  std::vector<std::vector<int>> Waits() && {
    AddDataWaits(&schedule_);
    std::vector<std::vector<int>> waits;
    for (const StepRun& run : schedule_.runs) waits.push_back(run.waits);
    return waits;
  }

 private:
  const Built built_ = TwoLayers();
  Schedule schedule_;
};

constexpr Task::Kind kReads = Task::Kind::kSumOfSquares;
constexpr Task::Kind kWrites = Task::Kind::kReduce;

TEST(AddDataWaitsTest, AWriteWaitsForTheReadsBeforeIt) {
  List list;
  list.Add(kReads, StepStream::kMain);
  list.Add(kReads, StepStream::kUpdate);
  list.Add(kWrites, StepStream::kCommunication);
  EXPECT_THAT(std::move(list).Waits(),
              ElementsAre(IsEmpty(), IsEmpty(), UnorderedElementsAre(0, 1)));
}

TEST(AddDataWaitsTest, AReadWaitsForTheWriteBeforeIt) {
  List list;
  list.Add(kWrites, StepStream::kCommunication);
  list.Add(kReads, StepStream::kUpdate);
  list.Add(kReads, StepStream::kMain);
  list.Add(kReads, StepStream::kMain);
  EXPECT_THAT(std::move(list).Waits(), ElementsAre(IsEmpty(), ElementsAre(0),
                                                   ElementsAre(0), IsEmpty()));
}

}  // namespace
}  // namespace tessera::testing
