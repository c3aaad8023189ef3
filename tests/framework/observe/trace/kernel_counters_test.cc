// Counts kernels whose bytes and products are known.

#include <ATen/ATen.h>

#include <iostream>
#include <map>
#include <memory>
#include <string>

#include "framework/cuda/cuda_build.h"
#include "framework/observe/trace/activity_source.h"
#include "framework/observe/trace/step_profile.h"
#include "framework/observe/trace/trace_recorder.h"
#include "gtest/gtest.h"
#include "tests/testing/new_process.h"

namespace tessera {
namespace {

constexpr int64_t kLarge = int64_t{512} << 20;  // bytes: ten times any L2
constexpr int64_t kSmall = int64_t{4} << 20;

at::Tensor Floats(int64_t bytes) {
  return at::ones({bytes / 4}, at::dtype(at::kFloat).device(at::kCUDA));
}

// The counters of each op, by its name.
std::map<std::string, KernelCounters> CountersOfOps(const Trace& trace) {
  std::map<std::string, KernelCounters> counters;
  for (const DeviceActivity& activity : trace.activities) {
    counters[trace.PathOf(activity.range)] +=
        trace.counters.at(activity.correlation);
  }
  return counters;
}

// A process can count only before its first trace.
TEST(KernelCountersWorker, DISABLED_CountsBytesProductsAndHits) {
  if constexpr (kCudaBuild) {
    const at::Tensor large = Floats(kLarge), small = Floats(kSmall);
    at::Tensor large_sum = at::empty_like(large);
    at::Tensor small_sum = at::empty_like(small);
    const at::Tensor a =
        at::rand({8192, 8192}, at::dtype(at::kBFloat16).device(at::kCUDA));
    // CUPTI's results are read before and after the product.
    TraceRecorder recorder(CuptiKernelCounters(/*kernels_at_once=*/3));
    const auto run = [&] {
      const StepScope step(&recorder, 1);
      {
        const OpScope op(&recorder, "large");
        at::add_out(large_sum, large, 1);
      }
      for (const char* name : {"small", "again"}) {
        const OpScope op(&recorder, name);
        at::add_out(small_sum, small, 1);
      }
      const OpScope op(&recorder, "product");
      a.mm(a);
    };
    run();  // loads the kernels
    const absl::Status started = recorder.Start();
    if (absl::IsPermissionDenied(started)) GTEST_SKIP() << started;
    ASSERT_TRUE(started.ok()) << started;
    recorder.Keep();
    run();
    const absl::StatusOr<Trace> trace = recorder.Stop();
    ASSERT_TRUE(trace.ok()) << trace.status();

    const auto counters = CountersOfOps(*trace);
    ASSERT_EQ(counters.size(), 4u);
    for (const auto& [name, counted] : counters) {
      std::cout << name << ": launches " << counted.launches << ", ns "
                << counted.ns << ", tensor "
                << counted.tensor_share().value_or(-1) << ", DRAM bytes "
                << counted.dram_bytes.value_or(-1) << ", L2 hits "
                << counted.l2_hit_share().value_or(-1) << std::endl;
      EXPECT_GT(counted.ns, 0) << name;
      ASSERT_TRUE(counted.tensor_ns && counted.dram_bytes && counted.l2_hits)
          << name;
    }
    const KernelCounters& sum = counters.at("large");
    EXPECT_EQ(sum.launches, 1);
    EXPECT_NEAR(*sum.dram_bytes, 2 * kLarge, 0.15 * 2 * kLarge);
    EXPECT_LT(*sum.tensor_share(), 0.01);
    const KernelCounters& product = counters.at("product");
    EXPECT_GT(*product.tensor_share(), 0.5);
    EXPECT_LE(*product.tensor_share(), 1.0);
    // Both operands of the second sum are in L2.
    const KernelCounters& again = counters.at("again");
    EXPECT_LT(*again.dram_bytes, 0.2 * 2 * kSmall);
    // Requests that write the result do not all hit: 0.82 on an H200, 0.66 on
    // an H100. Operands that are not in L2 give 0.002 at most.
    EXPECT_GT(*again.l2_hit_share(), 0.5);
    EXPECT_LT(*sum.l2_hit_share(), 0.1);

    // What a trace calls the same kernels.
    TraceRecorder tracer(CuptiActivities(/*max_records=*/1000));
    ASSERT_TRUE(tracer.Start().ok());
    tracer.Keep();
    {
      const StepScope step(&tracer, 2);
      const OpScope op(&tracer, "product");
      a.mm(a);
    }
    const absl::StatusOr<Trace> traced = tracer.Stop();
    ASSERT_TRUE(traced.ok()) << traced.status();
    StepProfile profile = BuildStepProfile(*traced, {});
    AddCounters(BuildStepProfile(*trace, {}), &profile);
    ASSERT_FALSE(profile.kernels.empty());
    const KernelTime& kernel = profile.kernels[0];
    ASSERT_TRUE(kernel.counters.has_value()) << kernel.symbol;
    EXPECT_EQ(kernel.counters->tensor_share(), product.tensor_share());

    // After a trace CUPTI does not count any more, and says so.
    EXPECT_TRUE(absl::IsFailedPrecondition(
        TraceRecorder(CuptiKernelCounters()).Start()));
  }
}

TEST(GpuKernelCountersTest, CountsBytesProductsAndHits) {
  if constexpr (!kCudaBuild) GTEST_SKIP() << "needs a CUDA build";
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  testing::RunInNewProcess(
      "KernelCountersWorker.DISABLED_CountsBytesProductsAndHits");
}

}  // namespace
}  // namespace tessera
