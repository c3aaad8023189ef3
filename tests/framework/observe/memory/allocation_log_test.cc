#include "framework/observe/memory/allocation_log.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

int64_t Of(const MemoryBreakdown& breakdown, MemoryCategory category) {
  return breakdown.bytes[static_cast<size_t>(category)];
}

// The categories that hold something: "parameters 400".
std::vector<std::string> Held(const BytesByCategory& bytes) {
  std::vector<std::string> held;
  for (size_t c = 0; c < bytes.size(); ++c) {
    if (bytes[c] == 0) continue;
    held.push_back(absl::StrCat(kMemoryCategoryNames[c], " ", bytes[c]));
  }
  return held;
}

// "block_0 attention/qkv 10".
std::vector<std::string> Lines(const std::vector<BlockBytes>& blocks) {
  std::vector<std::string> lines;
  for (const BlockBytes& block : blocks) {
    for (const auto& op : block.ops) {
      lines.push_back(absl::StrCat(block.block, " ", op.op, " ", op.bytes));
    }
  }
  return lines;
}

// An allocator that rounds up to 8 bytes and takes 100 at a time from its
// device, and the log that follows it. Every event takes a millisecond.
class AllocationLogTest : public testing::Test {
 protected:
  AllocationLogTest()
      : log_([this] { return now_ += absl::Milliseconds(1); }) {}

  void Allocate(uint64_t address, int64_t bytes) {
    sizes_[address] = bytes;
    allocated_ += (bytes + 7) / 8 * 8;
    reserved_ = std::max(reserved_, (allocated_ + 99) / 100 * 100);
    log_.Allocate(address, bytes);
  }
  void Free(uint64_t address) {
    allocated_ -= (sizes_.at(address) + 7) / 8 * 8;
    sizes_.erase(address);
    log_.Free(address);
  }
  void Sample() { log_.Sample(allocated_, reserved_); }

  void Phase(absl::string_view name, const std::function<void()>& inside) {
    Sample();
    const PhaseScope scope(&log_, name);
    inside();
    Sample();
  }
  void Op(absl::string_view name, const std::function<void()>& inside,
          OpResults results = OpResults::kActivations) {
    Sample();
    const OpScope scope(&log_, name, results);
    inside();
    Sample();
  }
  void Step(int64_t step, const std::function<void()>& inside) {
    Sample();
    const StepScope scope(&log_, step);
    inside();
    Sample();
  }

  // A step of two blocks with flat buffers at 1000 and 2000.
  void TrainingStep(int64_t step) {
    Step(step, [&] {
      Phase("forward", [&] {
        for (int block = 0; block < 2; ++block) {
          const uint64_t base = 10'000 * (block + 1);
          Phase(absl::StrCat("block_", block), [&] {
            Phase("attention", [&] {
              Op("qkv", [&] { Allocate(base, 30); });
              Op("sdpa", [&] {
                Allocate(base + 100, 10);
                Phase("scores", [&] { Allocate(base + 200, 64); });
                Free(base + 200);
              });
            });
            Op("add", [&] {
              Allocate(base + 300, 20);
              Free(base + 100);
            });
          });
        }
        Op("loss", [&] { Allocate(5000, 4); });
      });
      Phase("backward", [&] {
        Op(
            "loss",
            [&] {
              Allocate(6000, 100);
              Free(5000);
            },
            OpResults::kGradients);
        for (const int block : {1, 0}) {
          const uint64_t base = 10'000 * (block + 1);
          Phase(absl::StrCat("block_", block), [&] {
            Op("add", [&] { Free(base + 300); });
            Op("qkv", [&] { Free(base); });
          });
        }
        Op("embedding", [&] { Free(6000); });
      });
      Phase("reduce", [&] {
        Op(
            "gradients",
            [&] {
              Allocate(7000, 16);
              Free(7000);
            },
            OpResults::kCommunication);
      });
      Phase("optimizer", [&] {});
    });
  }

  absl::Time now_ = absl::UnixEpoch();
  AllocationLog log_;
  int64_t allocated_ = 0, reserved_ = 0;
  std::map<uint64_t, int64_t> sizes_;
};

// The allocator's rounding is seen when the op ends.
TEST_F(AllocationLogTest, ThePeakIsInTheOpWhoseAllocationWasRoundedUp) {
  Step(1, [&] {
    Phase("forward", [&] {
      Op("qkv", [&] { Allocate(100, 30); });
      Op("sdpa", [&] { Allocate(200, 61); });
      Op("loss", [&] { Free(100); });
    });
  });
  const MemoryRecord record = log_.Report({});
  EXPECT_EQ(record.peak_in, "forward/sdpa");
  EXPECT_EQ(record.peak.allocated, 32 + 64);
}

TEST_F(AllocationLogTest, AStepByCategoryPhaseBlockAndOp) {
  Allocate(1000, 400);
  Allocate(2000, 200);
  Allocate(3000, 8);
  log_.Own(MemoryCategory::kParameters, 1000);
  log_.Own(MemoryCategory::kGradients, 2100);
  TrainingStep(1);
  TrainingStep(2);
  const MemoryRecord record = log_.Report({});
  EXPECT_EQ(record.step, 2);

  // When the loss's backward has its result.
  EXPECT_EQ(record.peak_in, "backward/loss");
  EXPECT_THAT(Held(record.peak.bytes),
              ElementsAre("parameters 400", "gradients 200", "activations 104",
                          "activation_gradients 100", "other 8"));
  EXPECT_THAT(
      Lines(record.peak.activations),
      ElementsAre("block_0 attention/qkv 30", "block_0 add 20",
                  "block_1 attention/qkv 30", "block_1 add 20", "loss loss 4"));
  // 608 + 2 * (32 + 24) + 8 + 100: what the last one is rounded to is not known
  // until the op ends.
  EXPECT_EQ(record.peak.allocated, 828);
  EXPECT_EQ(record.peak.slack(), 828 - 812);
  EXPECT_EQ(record.peak.reserved, 900);
  EXPECT_EQ(record.peak.fragmentation(), 900 - 828);

  EXPECT_THAT(Held(record.end.bytes),
              ElementsAre("parameters 400", "gradients 200", "other 8"));
  EXPECT_EQ(record.end.allocated, 608);
  EXPECT_EQ(record.end.slack(), 0);
  EXPECT_EQ(record.end.fragmentation(), 900 - 608);

  EXPECT_THAT(Lines(record.saved),
              testing::ContainerEq(Lines(record.peak.activations)));

  ASSERT_THAT(record.phases, SizeIs(4));
  EXPECT_EQ(record.phases[0].phase, "forward");
  EXPECT_EQ(record.phases[0].allocated, 608 + 2 * 56 + 8);
  // In block_1's sdpa.
  EXPECT_EQ(record.phases[0].peak, 608 + 56 + 32 + 16 + 64);
  EXPECT_EQ(record.phases[1].phase, "backward");
  EXPECT_EQ(record.phases[1].peak, 828);
  EXPECT_EQ(record.phases[1].allocated, 608);
  EXPECT_EQ(record.phases[1].reserved, 900);
  EXPECT_EQ(record.phases[2].phase, "reduce");
  EXPECT_EQ(record.phases[2].peak, 624);
}

TEST_F(AllocationLogTest, WorkspaceDiesInItsOpAndLibrariesKeepTheirs) {
  Step(1, [&] {
    Phase("forward", [&] {
      Op("qkv", [&] {
        Allocate(100, 64);  // cuBLAS keeps it
        Allocate(200, 80);
        Free(200);
      });
      Op("qkv", [&] { Allocate(300, 8); });
      Free(300);
    });
    Phase("reduce", [&] {
      Op(
          "gradients", [&] { Allocate(400, 24); }, OpResults::kCommunication);
    });
  });
  MemoryRecord record = log_.Report({});
  EXPECT_THAT(Held(record.peak.bytes), ElementsAre("workspace 144"));
  EXPECT_THAT(Held(record.end.bytes),
              ElementsAre("workspace 64", "communication 24"));
  // From an earlier step.
  Step(2, [&] {});
  record = log_.Report({});
  EXPECT_THAT(Held(record.end.bytes),
              ElementsAre("workspace 64", "communication 24"));
}

TEST_F(AllocationLogTest, RecomputedActivationsAreActivations) {
  Step(1, [&] {
    Phase("backward", [&] {
      Phase("recompute", [&] {
        Phase("block_7", [&] { Op("w13", [&] { Allocate(100, 40); }); });
      });
      Phase("block_7", [&] {
        Op(
            "w2", [&] { Allocate(200, 16); }, OpResults::kGradients);
        Op("w13", [&] {
          Free(100);
          Free(200);
        });
      });
    });
  });
  const MemoryRecord record = log_.Report({});
  EXPECT_THAT(Held(record.peak.bytes),
              ElementsAre("activations 40", "activation_gradients 16"));
  EXPECT_THAT(Lines(record.peak.activations), ElementsAre("block_7 w13 40"));
  EXPECT_THAT(record.saved, IsEmpty());
}

TEST_F(AllocationLogTest, TheLargestAllocationsAndWhereTheyGo) {
  TrainingStep(1);
  const std::vector<LargeAllocation> largest = log_.Report({}).largest;
  ASSERT_THAT(largest, SizeIs(10));
  EXPECT_EQ(largest[0].bytes, 100);
  EXPECT_EQ(largest[0].category, MemoryCategory::kActivationGradients);
  EXPECT_EQ(largest[0].from, "backward/loss");
  EXPECT_EQ(largest[0].to, "backward/embedding");
  EXPECT_GE(largest[0].ms, 1);
  EXPECT_GT(largest[0].at_ms, largest[1].at_ms);
  EXPECT_EQ(largest[1].bytes, 64);
  EXPECT_EQ(largest[1].category, MemoryCategory::kWorkspace);
  EXPECT_EQ(largest[1].from, "forward/block_0/attention/sdpa/scores");
  EXPECT_EQ(largest[1].to, "forward/block_0/attention/sdpa");
  EXPECT_EQ(largest[3].from, "forward/block_0/attention/qkv");
  EXPECT_EQ(largest[3].to, "backward/block_0/qkv");
}

TEST_F(AllocationLogTest, MemoryBetweenStepsIsKnownButNotTheStepS) {
  TrainingStep(1);
  Phase("evaluation", [&] {
    Allocate(100, 1000);
    Free(100);
    Allocate(200, 8);
  });
  EXPECT_EQ(log_.Report({}).peak.allocated, 828 - 608);
  Step(2, [&] { Free(200); });
  const MemoryRecord record = log_.Report({});
  EXPECT_EQ(record.peak.allocated, 8);
  EXPECT_EQ(record.end.allocated, 0);
}

TEST_F(AllocationLogTest, TheTimelineKeepsThePeak) {
  Allocate(1, 8);
  Step(1, [&] {
    Phase("forward", [&] {
      for (uint64_t i = 0; i < 5000; ++i) {
        Op("op", [&] {
          Allocate(100, 8);
          if (i == 3333) Allocate(200, 800);
          if (i == 3333) Free(200);
          Free(100);
        });
      }
    });
  });
  EXPECT_THAT(log_.Report({}).timeline.points, IsEmpty());
  const MemoryTimeline timeline = log_.Report({.with_timeline = true}).timeline;
  ASSERT_LE(timeline.points.size(), MemoryTimeline::kMaxPoints);
  ASSERT_GT(timeline.points.size(), MemoryTimeline::kMaxPoints / 2);
  int64_t most = 0, last_us = -1;
  for (const MemoryTimeline::Point& point : timeline.points) {
    most = std::max(
        most, point.bytes[static_cast<size_t>(MemoryCategory::kWorkspace)]);
    EXPECT_EQ(point.bytes[static_cast<size_t>(MemoryCategory::kOther)], 8);
    EXPECT_GT(point.us, last_us);
    last_us = point.us;
  }
  EXPECT_EQ(most, 808);
}

TEST_F(AllocationLogTest, AnArenaIsActivations) {
  Allocate(1000, 400);
  log_.Own(MemoryCategory::kActivations, 1000);
  Step(1, [] {});
  const MemoryRecord record = log_.Report({});
  EXPECT_EQ(Of(record.end, MemoryCategory::kActivations), 400);
  EXPECT_THAT(Lines(record.end.activations), ElementsAre("arena arena 400"));
}

TEST_F(AllocationLogTest, AnAllocationEndsBeforeItsNeighbour) {
  Allocate(1000, 400);
  Allocate(1400, 400);
  log_.Own(MemoryCategory::kParameters, 1400);
  Step(1, [] {});
  const MemoryRecord record = log_.Report({});
  EXPECT_EQ(Of(record.end, MemoryCategory::kParameters), 400);
  EXPECT_EQ(Of(record.end, MemoryCategory::kOther), 400);
}

TEST(AllocationLogWithoutStepsTest, ReportsNothing) {
  const MemoryRecord record = AllocationLog().Report({.with_timeline = true});
  EXPECT_THAT(record.phases, IsEmpty());
  EXPECT_EQ(record.peak.allocated, 0);
}

}  // namespace
}  // namespace tessera
