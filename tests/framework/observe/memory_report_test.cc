#include "framework/observe/memory_report.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(MemoryReportTest, Table) {
  const MemoryReport report = {.parameters = 2 * kGiB,
                               .shadow = 1 * kGiB,
                               .gradients = 1 * kGiB,
                               .optimizer = 4 * kGiB,
                               .activations = 7 * kGiB,
                               .activation_gradients = 1 * kGiB,
                               .capacity = 64 * kGiB};
  EXPECT_EQ(report.total(), 16 * kGiB);
  EXPECT_EQ(FormatMemoryTable(report),
            "memory per device\n"
            "  parameters          2.00 GiB   12.5%\n"
            "  shadow              1.00 GiB    6.2%\n"
            "  gradients           1.00 GiB    6.2%\n"
            "  optimizer           4.00 GiB   25.0%\n"
            "  activations         7.00 GiB   43.8%\n"
            "  their gradients     1.00 GiB    6.2%\n"
            "  total              16.00 GiB of 64.00 GiB (25.0%)\n");
}

TEST(MemoryReportTest, TableOfAGpu) {
  const MemoryReport report = {.parameters = 6 * kGiB,
                               .workspace = 1 * kGiB,
                               .libraries = 1 * kGiB,
                               .slack = 1 * kGiB,
                               .fragmentation = 3 * kGiB,
                               .context = 3 * kGiB,
                               .communication = 1 * kGiB,
                               .capacity = 20 * kGiB};
  EXPECT_EQ(FormatMemoryTable(report),
            "memory per device\n"
            "  parameters          6.00 GiB   37.5%\n"
            "  workspace           1.00 GiB    6.2%\n"
            "  cuBLAS              1.00 GiB    6.2%\n"
            "  rounding            1.00 GiB    6.2%\n"
            "  allocated           9.00 GiB   56.2%\n"
            "  fragmentation       3.00 GiB   18.8%\n"
            "  reserved           12.00 GiB   75.0%\n"
            "  CUDA context        3.00 GiB   18.8%\n"
            "  NCCL                1.00 GiB    6.2%\n"
            "  total              16.00 GiB of 20.00 GiB (80.0%)\n");
}

TEST(MemoryReportTest, EmptyTableWithoutCapacity) {
  EXPECT_EQ(FormatMemoryTable({}),
            "memory per device\n  total                    0 B\n");
}

}  // namespace
}  // namespace tessera
