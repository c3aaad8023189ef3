#include "framework/cuda/device_spec.h"

#include <string>

#include "absl/strings/match.h"
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
  const DeviceSpec* const b200 = FindDeviceSpec("NVIDIA B200");
  EXPECT_NEAR(b200->peak_mhz(ProductKind::kFp32).value(), 1965, 20);
  EXPECT_NEAR(b200->peak_mhz(ProductKind::kHalf).value(), 1850, 10);
  DeviceSpec unlisted = *h200;
  unlisted.compute_capability = 121;
  EXPECT_EQ(unlisted.peak_mhz(ProductKind::kHalf), std::nullopt);
}

// Their data sheets give every figure at the boost clock. A figure "with
// sparsity", or a GeForce card's rate with FP16 accumulation, is twice as high.
TEST(DeviceSpecTest, RtxCardsReachTheirPeaksAtTheBoostClock) {
  struct Card {
    const char* name;
    double boost_mhz;
  };
  for (const Card& card :
       {Card{"NVIDIA GeForce RTX 3090", 1695},
        Card{"NVIDIA GeForce RTX 4090", 2520},
        Card{"NVIDIA GeForce RTX 5090", 2407}, Card{"NVIDIA RTX A6000", 1800},
        Card{"NVIDIA RTX 6000 Ada Generation", 2505}, Card{"NVIDIA L40S", 2520},
        Card{"NVIDIA L4", 2040}}) {
    SCOPED_TRACE(card.name);
    const DeviceSpec* const spec = FindDeviceSpec(card.name);
    ASSERT_NE(spec, nullptr);
    for (const ProductKind kind :
         {ProductKind::kFp32, ProductKind::kTf32, ProductKind::kHalf}) {
      EXPECT_NEAR(spec->peak_mhz(kind).value(), card.boost_mhz,
                  0.02 * card.boost_mhz);
    }
    const bool geforce = absl::StrContains(card.name, "GeForce");
    EXPECT_NEAR(spec->half / spec->fp32, geforce ? 2 : 4, 0.1);
  }
}

TEST(DeviceSpecTest, DescribesADeviceThatIsNotPresent) {
  const auto h200 = DeviceToPlanFor("H200");
  ASSERT_TRUE(h200.ok()) << h200.status();
  EXPECT_TRUE(h200->is_cuda());
  EXPECT_EQ(h200->name, "NVIDIA H200");
  EXPECT_EQ(h200->compute_capability, 90);
  EXPECT_NE(FindDeviceSpec(h200->name), nullptr);
  struct Spelling {
    const char* typed;
    const char* name;
  };
  for (const Spelling& spelling :
       {Spelling{"a100-40", "NVIDIA A100-SXM4-40GB"},
        Spelling{"A100_40GB", "NVIDIA A100-SXM4-40GB"},
        Spelling{"A100 80GB", "NVIDIA A100-SXM4-80GB"},
        Spelling{"a100-pcie-40gb", "NVIDIA A100-PCIE-40GB"},
        Spelling{"h100", "NVIDIA H100 80GB HBM3"},
        Spelling{"4090", "NVIDIA GeForce RTX 4090"},
        Spelling{"RTX 4090", "NVIDIA GeForce RTX 4090"},
        Spelling{"RTX A6000", "NVIDIA RTX A6000"},
        Spelling{"rtx6000ada", "NVIDIA RTX 6000 Ada Generation"}}) {
    const auto device = DeviceToPlanFor(spelling.typed);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(device->name, spelling.name);
  }
  EXPECT_FALSE(DeviceToPlanFor("").ok());
  EXPECT_FALSE(DeviceToPlanFor("6000").ok());
  const absl::Status unknown = DeviceToPlanFor("H201").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(unknown.message()),
      testing::AllOf(testing::HasSubstr("'H201'"), testing::HasSubstr("H200")));
}

}  // namespace
}  // namespace tessera
