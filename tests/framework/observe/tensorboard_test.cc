#include "framework/observe/tensorboard.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/observe/crc32c.h"
#include "framework/observe/tensorboard_event.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Bytes(const std::vector<int>& values) {
  return std::string(values.begin(), values.end());
}

// RFC 3720, appendix B.4, and the check value in catalogues of CRCs.
TEST(Crc32cTest, GivesThePublishedValues) {
  std::string ascending(32, '\0');
  for (int i = 0; i < 32; ++i) ascending[i] = static_cast<char>(i);
  const std::string descending(ascending.rbegin(), ascending.rend());
  EXPECT_EQ(Crc32c(""), 0x00000000);
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AA);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62A8AB43);
  EXPECT_EQ(Crc32c(ascending), 0x46DD794E);
  EXPECT_EQ(Crc32c(descending), 0x113FDB5C);
}

TEST(Crc32cTest, MaskIsRotationPlusDelta) {
  // 0xE3069283 rotated right by 15 is 0x2507C60D.
  EXPECT_EQ(MaskedCrc32c("123456789"), 0x2507C60Du + 0xA282EAD8u);
}

uint64_t ReadInteger(absl::string_view bytes) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), bytes.size());
  return value;
}

// The events of a file. Also checks the framing.
std::vector<tensorboard::Event> ReadEvents(absl::string_view file) {
  std::vector<tensorboard::Event> events;
  while (!file.empty()) {
    const uint64_t length = ReadInteger(file.substr(0, 8));
    EXPECT_EQ(ReadInteger(file.substr(8, 4)), MaskedCrc32c(file.substr(0, 8)));
    const absl::string_view data = file.substr(12, length);
    EXPECT_EQ(data.size(), length);
    EXPECT_EQ(ReadInteger(file.substr(12 + length, 4)), MaskedCrc32c(data));
    EXPECT_TRUE(events.emplace_back().ParseFromArray(data.data(), length));
    file.remove_prefix(16 + length);
  }
  return events;
}

class TensorboardTest : public testing::Test {
 protected:
  TensorboardTest()
      : folder_(absl::StrCat(
            testing::TempDir(), "/tensorboard_test.",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    EXPECT_TRUE(RemoveTree(folder_).ok());
    EXPECT_TRUE(MakeDirectories(folder_).ok());
  }

  std::unique_ptr<TensorboardWriter> Create() {
    auto writer = TensorboardWriter::Create(
        folder_, [] { return absl::FromUnixSeconds(2); });
    EXPECT_TRUE(writer.ok()) << writer.status();
    return *std::move(writer);
  }

  const std::string folder_;
};

TEST_F(TensorboardTest, StartsWithTheVersionByteForByte) {
  const auto writer = Create();
  EXPECT_THAT(writer->path(), HasSubstr("/events.out.tfevents.0000000002."));
  // Field 1, a double: tag 0x09, 2.0. Field 3, a string: tag 0x1a, length 13.
  const std::string event =
      Bytes({0x09, 0, 0, 0, 0, 0, 0, 0, 0x40, 0x1a, 13}) + "brain.Event:2";
  EXPECT_EQ(ReadFile(writer->path()).value(), TfRecord(event));
}

TEST_F(TensorboardTest, ScalarsHaveTheFieldNumbersOfTensorFlow) {
  const auto writer = Create();
  const std::string before = ReadFile(writer->path()).value();
  ASSERT_TRUE(writer->Write(3, {{"a/b", 1.5}}).ok());
  // Step: field 2, varint, tag 0x10. Summary: field 5, tag 0x2a, 12 bytes; in
  // it value: field 1, tag 0x0a, 10 bytes; in that tag: field 1, tag 0x0a, and
  // simple_value: field 2, a float, tag 0x15.
  const std::string event =
      Bytes({0x09, 0, 0, 0, 0, 0, 0, 0, 0x40, 0x10, 3, 0x2a, 12, 0x0a, 10}) +
      Bytes({0x0a, 3, 'a', '/', 'b', 0x15, 0, 0, 0xc0, 0x3f});
  EXPECT_EQ(ReadFile(writer->path()).value(), before + TfRecord(event));
}

TEST_F(TensorboardTest, ARestartHasTheFieldNumbersOfTensorFlow) {
  const auto writer = Create();
  const std::string before = ReadFile(writer->path()).value();
  ASSERT_TRUE(writer->SupersedeFrom(11).ok());
  // Step: field 2, varint, tag 0x10. Session log: field 7, tag 0x3a, 2 bytes;
  // in it status: field 1, varint, tag 0x08, START is 1.
  const std::string event =
      Bytes({0x09, 0, 0, 0, 0, 0, 0, 0, 0x40, 0x10, 11, 0x3a, 2, 0x08, 1});
  EXPECT_EQ(ReadFile(writer->path()).value(), before + TfRecord(event));
}

TEST_F(TensorboardTest, ALaterFileSortsLater) {
  // Even if the clock stands still or is another machine's.
  std::vector<std::string> names;
  for (int64_t now : {2, 2, 1, 9}) {
    const auto writer = TensorboardWriter::Create(
        folder_, [now] { return absl::FromUnixSeconds(now); });
    ASSERT_TRUE(writer.ok()) << writer.status();
    names.push_back((*writer)->path().substr(0, folder_.size() + 31));
  }
  const std::string prefix = folder_ + "/events.out.tfevents.";
  EXPECT_THAT(names, ElementsAre(prefix + "0000000002", prefix + "0000000003",
                                 prefix + "0000000004", prefix + "0000000009"));
}

TEST_F(TensorboardTest, RecordsAreReadBack) {
  const auto writer = Create();
  ASSERT_TRUE(
      writer
          ->OnStepLogged({.step = 7,
                          .loss = 2.5,
                          .grad_norm = 0.5,
                          .lr = 0.25,
                          .step_ms = 8,
                          .tokens_per_s = 1024,
                          .tflops = 400,
                          .mfu = 0.5,
                          .phases = {{"forward", 2, 1},
                                     {"forward/block_0", 1, 1},
                                     {"backward", 4, 1}},
                          .gpu = GpuCounters{.sm_mhz = 1425, .power_w = 500}})
          .ok());
  ASSERT_TRUE(writer->OnValidationEnd({.step = 8, .loss = 3}).ok());
  ASSERT_TRUE(writer
                  ->OnValidationEnd(
                      {.step = 8, .set = "code", .loss = 2, .bits_per_byte = 1})
                  .ok());
  const auto events = ReadEvents(ReadFile(writer->path()).value());
  ASSERT_EQ(events.size(), 4);
  EXPECT_EQ(events[1].step(), 7);
  EXPECT_EQ(events[1].wall_time(), 2);
  std::vector<std::string> scalars;
  for (const auto& value : events[1].summary().value()) {
    scalars.push_back(absl::StrCat(value.tag(), "=", value.simple_value()));
  }
  EXPECT_THAT(
      scalars,
      ElementsAre("train/loss=2.5", "train/grad_norm=0.5", "train/lr=0.25",
                  "perf/step_ms=8", "perf/tokens_per_s=1024", "perf/tflops=400",
                  "perf/mfu=0.5", "phase/forward_ms=2", "phase/backward_ms=4",
                  "gpu/sm_mhz=1425", "gpu/power_w=500"));
  EXPECT_EQ(events[2].step(), 8);
  EXPECT_EQ(events[2].summary().value(0).tag(), "eval/loss");
  EXPECT_EQ(events[3].summary().value(0).tag(), "eval/loss/code");
  EXPECT_EQ(events[3].summary().value(1).tag(), "eval/bits_per_byte/code");
  EXPECT_EQ(events[3].summary().value(1).simple_value(), 1);
}

TEST_F(TensorboardTest, ErrorsNameTheFolder) {
  const auto writer = TensorboardWriter::Create(folder_ + "/absent");
  EXPECT_EQ(writer.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(writer.status().message()),
              HasSubstr(folder_ + "/absent"));
}

}  // namespace
}  // namespace tessera
