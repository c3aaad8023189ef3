#include "framework/cuda/device_spec.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(DeviceSpecTest, KnowsItsTableAndDoesNotGuess) {
  const DeviceSpec* const h200 = FindDeviceSpec("NVIDIA H200");
  ASSERT_NE(h200, nullptr);
  EXPECT_EQ(h200->tflops(ProductKind::kHalf), 989);
  EXPECT_EQ(h200->tflops(ProductKind::kTf32), 494);
  EXPECT_EQ(h200->tflops(ProductKind::kFp32), 67);
  EXPECT_EQ(FindDeviceSpec("NVIDIA A100-SXM4-80GB")->half, 312);
  for (const char* unknown : {"", "NVIDIA H200 NVL", "NVIDIA H20", "H200",
                              "NVIDIA GeForce RTX 9090", "CPU"}) {
    EXPECT_EQ(FindDeviceSpec(unknown), nullptr) << unknown;
  }
}

// The boost clocks of the data sheets.
TEST(DeviceSpecTest, PeaksHoldAtAClock) {
  const DeviceSpec* const a100 = FindDeviceSpec("NVIDIA A100-SXM4-80GB");
  EXPECT_NEAR(a100->peak_mhz(ProductKind::kFp32).value(), 1410, 2);
  EXPECT_NEAR(a100->peak_mhz(ProductKind::kTf32).value(), 1410, 2);
  EXPECT_NEAR(a100->peak_mhz(ProductKind::kHalf).value(), 1410, 2);
  const DeviceSpec* const h200 = FindDeviceSpec("NVIDIA H200");
  EXPECT_NEAR(h200->peak_mhz(ProductKind::kFp32).value(), 1980, 5);
  EXPECT_NEAR(h200->peak_mhz(ProductKind::kTf32).value(), 1830, 5);
  EXPECT_NEAR(h200->peak_mhz(ProductKind::kHalf).value(), 1830, 5);
  DeviceSpec unlisted = *h200;
  unlisted.compute_capability = 121;
  EXPECT_EQ(unlisted.peak_mhz(ProductKind::kHalf), std::nullopt);
}

TEST(DeviceSpecTest, DescribesADeviceThatIsNotPresent) {
  const auto h200 = DeviceToPlanFor("H200");
  ASSERT_TRUE(h200.ok()) << h200.status();
  EXPECT_TRUE(h200->is_cuda());
  EXPECT_EQ(h200->name, "NVIDIA H200");
  EXPECT_EQ(h200->compute_capability, 90);
  EXPECT_NE(FindDeviceSpec(h200->name), nullptr);
  const absl::Status unknown = DeviceToPlanFor("H201").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(unknown.message()),
      testing::AllOf(testing::HasSubstr("'H201'"), testing::HasSubstr("H200")));
}

}  // namespace
}  // namespace tessera
