#include "framework/observe/trace/step_profile.h"

#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "framework/observe/trace/step_profile_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/observe/trace/trace_builder.h"

namespace tessera::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = DeviceActivity::Kind;
using Level = HostRange::Level;

constexpr char kGemm[] = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopB_TNT";
constexpr char kSwiGlu[] =
    "void tessera::(anonymous namespace)::SwiGluForward<__nv_bfloat16, "
    "8>(__nv_bfloat16 const*, __nv_bfloat16*, long)";
constexpr char kSoftmax[] =
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, "
    "true, false>(float*, float const*, int, int, int, bool const*, int, bool)";
constexpr char kAdamW[] =
    "void tessera::(anonymous namespace)::AdamWUpdate<float, float, "
    "float>(tessera::AdamWOptions)";

std::string CastTo(const char* store) {
  return absl::StrCat(
      "void at::native::unrolled_elementwise_kernel<at::native::f("
      "at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul>, 4, "
      "TrivialOffsetCalculator<1, unsigned int>, at::native::memory::",
      store, ">(int)");
}

std::vector<StepRow> Rows() {
  std::vector<StepRow> rows;
  for (const char* phase : {"forward", "backward"}) {
    for (const char* block : {"block_0", "block_1"}) {
      rows.push_back({.phase = phase,
                      .group = absl::StrCat(block, "/attention"),
                      .name = "qkv",
                      .kind = "linear",
                      .cost = {.flops = 4e6,
                               .bytes = 1000,
                               .product_flops = 4e6,
                               .products = 1},
                      .seconds = 1e-6});
      rows.push_back({.phase = phase,
                      .group = absl::StrCat(block, "/attention"),
                      .name = "sdpa",
                      .kind = "attention",
                      .cost = {.flops = 1e6,
                               .bytes = 500,
                               .product_flops = 1e6,
                               .products = 2},
                      .seconds = 1e-6});
      rows.push_back({.phase = phase,
                      .group = absl::StrCat(block, "/ffn"),
                      .name = "swiglu",
                      .kind = "swiglu",
                      .cost = {.bytes = 300}});
    }
  }
  rows.push_back({.phase = "optimizer",
                  .name = "weights",
                  .kind = "adamw",
                  .cost = {.flops = 10, .bytes = 4000},
                  .seconds = 2e-6});
  return rows;
}

// Issues kernels one by one, each a microsecond after its launch.
class StepWriter {
 public:
  int Open(Level level, absl::string_view name, int parent) {
    now_ += 10;
    return b_.Range(level, name, parent, now_, 0);
  }
  void Close(int range) { b_.trace().ranges[range].end_ns = (now_ += 10); }

  void Run(absl::string_view kernel, int64_t ns, Kind kind = Kind::kKernel) {
    const uint32_t correlation = b_.Launch(now_ + 10, now_ + 20);
    now_ += 20;
    device_ = std::max(device_, now_ + 1000);
    b_.Activity(kind, kernel, correlation, device_, device_ + ns);
    device_ += ns;
  }

  // A step of two blocks with NAIVE attention; returns its range.
  int Step(const std::string& name) {
    const int step = Open(Level::kStep, name, -1);
    const int prepare = Open(Level::kPhase, "prepare", step);
    Run("copy H2D", 5, Kind::kCopy);
    Close(prepare);
    Run(CastTo("StoreWithoutCast"), 7);
    for (const char* pass : {"forward", "backward"}) {
      const int phase = Open(Level::kPhase, pass, step);
      for (const char* name : {"block_0", "block_1"}) {
        const int block = Open(Level::kPhase, name, phase);
        Attention(block);
        const int ffn = Open(Level::kPhase, "ffn", block);
        const int op = Open(Level::kOp, "swiglu", ffn);
        Run(kSwiGlu, 50);
        Close(op);
        Close(ffn);
        Close(block);
      }
      Run(CastTo("StoreWithCast<1>"), 11);
      Close(phase);
    }
    const int optimizer = Open(Level::kPhase, "optimizer", step);
    const int update = Open(Level::kOp, "weights", optimizer);
    Run(kAdamW, 4000);
    Close(update);
    Close(optimizer);
    Close(step);
    return step;
  }

  void Attention(int block) {
    const int attention = Open(Level::kPhase, "attention", block);
    const int qkv = Open(Level::kOp, "qkv", attention);
    Run(kGemm, 1000);
    Close(qkv);
    const int op = Open(Level::kOp, "sdpa", attention);
    const int scores = Open(Level::kPhase, "scores", op);
    Run(kGemm, 100);
    Close(scores);
    const int softmax = Open(Level::kPhase, "softmax", op);
    Run(kSoftmax, 80);
    Close(softmax);
    const int values = Open(Level::kPhase, "values", op);
    Run(kGemm, 60);
    Close(values);
    Close(op);
    Close(attention);
  }

  TraceBuilder& builder() { return b_; }
  int64_t now() const { return now_; }
  int64_t device() const { return device_; }

 private:
  TraceBuilder b_;
  int64_t now_ = 0, device_ = 0;
};

int64_t Sum(const std::vector<TimeTotal>& totals) {
  int64_t sum = 0;
  for (const TimeTotal& total : totals) sum += total.ns;
  return sum;
}

int64_t Ns(const std::vector<TimeTotal>& totals, const std::string& name) {
  for (const TimeTotal& total : totals) {
    if (total.name == name) return total.ns;
  }
  return -1;
}

TEST(StepProfileTest, EveryActivityIsInOneClassOnePhaseAndOneBlock) {
  StepWriter writer;
  writer.Step("step_3");
  const int evaluation = writer.Open(Level::kPhase, "evaluation", -1);
  writer.Run(kGemm, 123456);
  writer.Close(evaluation);
  writer.Step("step_4");
  // NCCL's own thread.
  writer.builder().Call("cudaLaunchKernel", 900, 20, 30, /*thread=*/2);
  writer.builder().Kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL()", 900, 40,
                          70, /*stream=*/20);
  const StepProfile profile =
      BuildStepProfile(writer.builder().Build(), Rows());

  EXPECT_EQ(profile.steps, 2);
  const int64_t per_pass = 2 * (1000 + 100 + 80 + 60 + 50) + 11;
  const int64_t total = 2 * (5 + 7 + 2 * per_pass + 4000) + 30;
  EXPECT_EQ(profile.total_ns, total);
  EXPECT_EQ(Sum(profile.classes), total);
  EXPECT_EQ(Sum(profile.phases), total);
  EXPECT_EQ(Sum(profile.blocks), total);
  int64_t kernels = 0, ops = 0, instances = 0;
  for (const KernelTime& kernel : profile.kernels) {
    kernels += kernel.ns;
    instances += kernel.instances;
  }
  for (const OpTime& op : profile.ops) ops += op.ns;
  EXPECT_EQ(kernels, total);
  EXPECT_EQ(ops, total);
  EXPECT_EQ(instances, profile.activities);
  EXPECT_EQ(profile.activities, 2 * (1 + 1 + 2 * 11 + 1) + 1);

  EXPECT_EQ(Ns(profile.classes, "GEMM"), 2 * 4 * (1000 + 100 + 60));
  EXPECT_EQ(Ns(profile.classes, "attention"), 2 * 4 * 80);
  EXPECT_EQ(Ns(profile.classes, "elementwise"), 2 * (7 + 2 * 11 + 4 * 50));
  EXPECT_EQ(Ns(profile.classes, "optimizer"), 2 * 4000);
  EXPECT_EQ(Ns(profile.classes, "copy"), 2 * 5);
  EXPECT_EQ(Ns(profile.classes, "communication"), 30);
  EXPECT_EQ(profile.ClassNs(KernelClass::kNorm), 0);

  std::vector<std::string> phases, blocks;
  for (const TimeTotal& phase : profile.phases) phases.push_back(phase.name);
  for (const TimeTotal& block : profile.blocks) blocks.push_back(block.name);
  EXPECT_THAT(phases, ElementsAre("prepare", "forward", "backward", "optimizer",
                                  "outside"));
  EXPECT_THAT(blocks, ElementsAre("block_0", "block_1", "outside"));
  EXPECT_EQ(Ns(profile.phases, "forward"), 2 * per_pass);
  EXPECT_EQ(Ns(profile.phases, "outside"), 2 * 7 + 30);
  EXPECT_EQ(Ns(profile.blocks, "block_1"), 2 * (per_pass - 11));
}

TEST(StepProfileTest, OpsAreJoinedWithTheProgramsRows) {
  StepWriter writer;
  writer.Step("step_3");
  const StepProfile profile =
      BuildStepProfile(writer.builder().Build(), Rows());
  ASSERT_EQ(profile.ops.size(), Rows().size() + 4);  // and outside of ops
  const OpTime& qkv = profile.ops[3];
  EXPECT_EQ(qkv.phase, "forward");
  EXPECT_EQ(qkv.group, "block_1/attention");
  EXPECT_EQ(qkv.ns, 1000);
  const Speed speed = SpeedOf(qkv, profile.steps);
  EXPECT_DOUBLE_EQ(*speed.tflop_per_s, 4);  // 4e6 in a microsecond
  EXPECT_DOUBLE_EQ(*speed.gb_per_s, 1);
  EXPECT_DOUBLE_EQ(*speed.roofline_share, 1);
  const OpTime& weights = profile.ops[Rows().size() - 1];
  EXPECT_EQ(weights.name, "weights");
  EXPECT_EQ(weights.ns, 4000);
  EXPECT_DOUBLE_EQ(*SpeedOf(weights, 1).roofline_share, 0.5);
  // No work is known.
  EXPECT_EQ(SpeedOf(profile.ops.back(), 1).tflop_per_s, std::nullopt);
}

const KernelTime& Find(const StepProfile& profile, absl::string_view symbol) {
  for (const KernelTime& kernel : profile.kernels) {
    if (kernel.symbol == symbol) return kernel;
  }
  ADD_FAILURE() << symbol;
  return profile.kernels[0];
}

TEST(StepProfileTest, KernelsDoTheWorkOfTheirOps) {
  StepWriter writer;
  writer.Step("step_3");
  writer.Step("step_4");
  const DeviceRates rates = {.product_flops_per_s = 4e12,
                             .vector_flops_per_s = 1e12,
                             .bytes_per_s = 2e9};
  const StepProfile profile =
      BuildStepProfile(writer.builder().Build(), Rows(), rates);
  double products = 0;
  for (const StepRow& row : Rows()) products += row.cost.product_flops;

  // Every product, of qkv and of attention, and no other work.
  const KernelTime& gemm = Find(profile, kGemm);
  ASSERT_TRUE(gemm.cost.has_value());
  EXPECT_DOUBLE_EQ(gemm.cost->product_flops, products);
  EXPECT_DOUBLE_EQ(gemm.cost->flops, products);
  EXPECT_EQ(gemm.cost->bytes, 0);  // attention's softmax moves some of them
  const Speed speed = SpeedOf(gemm, profile);
  const double us_per_step = 4 * (1000 + 100 + 60) * 1e-3;
  EXPECT_DOUBLE_EQ(*speed.tflop_per_s, products * 1e-6 / us_per_step);
  EXPECT_EQ(speed.gb_per_s, std::nullopt);
  EXPECT_DOUBLE_EQ(*speed.roofline_share, *speed.tflop_per_s / 4);
  EXPECT_EQ(Find(profile, kSoftmax).cost, std::nullopt);

  // The only kernel of its op: 300 bytes in 50 ns, 150 by the roofline.
  const KernelTime& swiglu = Find(profile, kSwiGlu);
  EXPECT_EQ(swiglu.cost->bytes, 4 * 300);
  EXPECT_DOUBLE_EQ(*SpeedOf(swiglu, profile).gb_per_s, 6);
  EXPECT_EQ(SpeedOf(swiglu, profile).tflop_per_s, std::nullopt);
  EXPECT_DOUBLE_EQ(*SpeedOf(swiglu, profile).roofline_share, 3);
  EXPECT_EQ(Find(profile, "copy H2D").cost, std::nullopt);

  // Without the peaks.
  const StepProfile unknown =
      BuildStepProfile(writer.builder().Build(), Rows());
  EXPECT_EQ(SpeedOf(unknown.kernels[0], unknown).roofline_share, std::nullopt);
  EXPECT_EQ(SpeedOf(unknown.kernels[0], unknown).tflop_per_s,
            speed.tflop_per_s);
}

// A step with one op that runs `kernels`, in nanoseconds.
StepProfile ProfileOfOp(
    const Cost& cost,
    const std::vector<std::pair<std::string, int64_t>>& kernels) {
  StepWriter writer;
  const int step = writer.Open(Level::kStep, "step_1", -1);
  const int backward = writer.Open(Level::kPhase, "backward", step);
  const int op = writer.Open(Level::kOp, "w", backward);
  for (const auto& [kernel, ns] : kernels) writer.Run(kernel, ns);
  writer.Close(op);
  writer.Close(backward);
  writer.Close(step);
  return BuildStepProfile(
      writer.builder().Build(),
      {{.phase = "backward", .name = "w", .kind = "linear", .cost = cost}});
}

TEST(StepProfileTest, KernelsOfOneOpShareItsProducts) {
  const Cost cost = {
      .flops = 12, .bytes = 6, .product_flops = 10, .products = 2};
  // One product each; the sum of split-K is not one.
  StepProfile profile = ProfileOfOp(
      cost, {{"gemm_a", 100}, {"gemm_b", 100}, {"splitKreduce_kernel", 50}});
  EXPECT_EQ(Find(profile, "gemm_a").cost->flops, 5);
  EXPECT_EQ(Find(profile, "gemm_b").cost->flops, 5);
  EXPECT_EQ(Find(profile, "splitKreduce_kernel").cost, std::nullopt);
  // Who computes how much is not known.
  profile =
      ProfileOfOp(cost, {{"gemm_a", 100}, {"gemm_b", 100}, {"gemm_a", 100}});
  EXPECT_EQ(Find(profile, "gemm_a").cost, std::nullopt);
  Cost unequal = cost;
  unequal.products = 0;
  profile = ProfileOfOp(unequal, {{"gemm_a", 100}, {"gemm_b", 100}});
  EXPECT_EQ(Find(profile, "gemm_a").cost, std::nullopt);
  // Fused attention: one kernel computes all products.
  profile = ProfileOfOp(cost, {{"tessera::flash::Preprocess()", 30},
                               {"tessera::flash::Backward()", 100}});
  EXPECT_EQ(Find(profile, "tessera::flash::Backward()").cost->flops, 10);
  EXPECT_EQ(Find(profile, "tessera::flash::Preprocess()").cost, std::nullopt);
  // Nearly all of the op, so all of its work.
  profile = ProfileOfOp(cost, {{"gemm_a", 95}, {"fill", 5}});
  EXPECT_EQ(Find(profile, "gemm_a").cost->flops, 12);
  EXPECT_EQ(Find(profile, "gemm_a").cost->bytes, 6);
  EXPECT_EQ(Find(profile, "fill").cost, std::nullopt);
}

// The profile of a forward and a backward op of one product and 6 bytes each.
// That in `beside` runs another kernel, too.
StepProfile ProfileOfTwoOps(const std::string& beside) {
  StepWriter writer;
  const int step = writer.Open(Level::kStep, "step_1", -1);
  std::vector<StepRow> rows;
  for (const std::string phase : {"forward", "backward"}) {
    rows.push_back(
        {.phase = phase,
         .name = "w",
         .kind = "linear",
         .cost = {
             .flops = 10, .bytes = 6, .product_flops = 10, .products = 1}});
    const int range = writer.Open(Level::kPhase, phase, step);
    const int op = writer.Open(Level::kOp, "w", range);
    writer.Run(kGemm, 100);
    if (phase == beside) writer.Run("fill", 100);
    writer.Close(op);
    writer.Close(range);
  }
  writer.Close(step);
  return BuildStepProfile(writer.builder().Build(), rows);
}

TEST(StepProfileTest, AKernelsBytesAreKnownIfThoseInEachOpAre) {
  EXPECT_EQ(Find(ProfileOfTwoOps(""), kGemm).cost->bytes, 12);
  for (const std::string beside : {"forward", "backward"}) {
    const StepProfile profile = ProfileOfTwoOps(beside);
    const KernelTime& gemm = Find(profile, kGemm);
    EXPECT_EQ(gemm.cost->flops, 20);
    EXPECT_EQ(gemm.cost->bytes, 0) << beside;
  }
}

TEST(StepProfileTest, RowsOfRunsAndMicroBatchesAddUp) {
  StepWriter writer;
  const int step = writer.Open(Level::kStep, "step_1", -1);
  const int forward = writer.Open(Level::kPhase, "forward", step);
  for (int i = 0; i < 3; ++i) {
    const int op = writer.Open(Level::kOp, "head", forward);
    writer.Run(kGemm, 100);
    writer.Close(op);
  }
  writer.Run(kGemm, 7);  // of no op
  writer.Close(forward);
  writer.Close(step);
  std::vector<StepRow> rows(2, {.phase = "forward",
                                .name = "head",
                                .kind = "linear",
                                .cost = {.flops = 10},
                                .seconds = 1e-9,
                                .count = 3});
  StepProfile profile = BuildStepProfile(writer.builder().Build(), rows);
  ASSERT_EQ(profile.ops.size(), 2u);
  EXPECT_EQ(profile.ops[0].ns, 300);
  EXPECT_EQ(profile.ops[0].cost->flops, 60);
  EXPECT_DOUBLE_EQ(*profile.ops[0].roofline_seconds, 6e-9);
  rows[1].seconds.reset();
  profile = BuildStepProfile(writer.builder().Build(), rows);
  EXPECT_EQ(profile.ops[0].roofline_seconds, std::nullopt);
}

TEST(StepProfileTest, AttentionIsSplitByPart) {
  StepWriter writer;
  writer.Step("step_3");
  const StepProfile profile =
      BuildStepProfile(writer.builder().Build(), Rows());
  ASSERT_EQ(profile.attention.size(), 2u);
  const AttentionTime& forward = profile.attention[0];
  EXPECT_EQ(forward.phase, "forward");
  EXPECT_EQ(forward.scores_ns, 200);
  EXPECT_EQ(forward.softmax_ns, 160);
  EXPECT_EQ(forward.values_ns, 120);
  EXPECT_EQ(forward.other_ns, 0);
  EXPECT_DOUBLE_EQ(*SoftmaxToProducts(forward), 0.5);
  EXPECT_EQ(SoftmaxToProducts({.other_ns = 7}), std::nullopt);
}

TEST(StepProfileTest, KernelsKeepApart) {
  StepWriter writer;
  writer.Step("step_3");
  const StepProfile profile =
      BuildStepProfile(writer.builder().Build(), Rows());
  std::vector<std::string> names;
  for (const KernelTime& kernel : profile.kernels) names.push_back(kernel.name);
  EXPECT_THAT(
      names,
      ElementsAre(kGemm, "AdamWUpdate<float, float, float>",
                  "softmax_warp_forward<float, float, float, 9, true, false>",
                  "SwiGluForward<bf16, 8>",
                  "unrolled_elementwise_kernel<f{float#1}, array<char*, 2>, 4, "
                  "TrivialOffsetCalculator<1, unsigned int>, StoreWithCast<1>>",
                  "unrolled_elementwise_kernel<f{float#1}, array<char*, 2>, 4, "
                  "TrivialOffsetCalculator<1, unsigned int>, StoreWithoutCast>",
                  "copy H2D"));
  EXPECT_EQ(profile.kernels[0].instances, 12);
  EXPECT_EQ(profile.kernels[0].symbol, kGemm);
  EXPECT_EQ(profile.kernels[2].kernel_class, KernelClass::kAttention);
  std::map<std::string, std::string> ops;
  for (const KernelTime& kernel : profile.kernels) ops[kernel.name] = kernel.op;
  EXPECT_EQ(ops["AdamWUpdate<float, float, float>"], "optimizer adamw");
  EXPECT_EQ(ops["copy H2D"], "prepare");
}

TEST(StepProfileTest, ASyncedStepTakesFromTheHostsBeginToTheDevicesEnd) {
  TraceBuilder b;
  b.Step("step_1", 1000, 2000);
  b.Kernel("a", b.Launch(1100, 1105), 1110, 1500);
  b.Kernel("b", b.Launch(1200, 1205), 1500, 5000);
  const StepProfile profile = BuildStepProfile(b.Build(), {});
  EXPECT_EQ(profile.wall_ns, 4000);
  EXPECT_EQ(profile.busy_ns, 3890);
}

TEST(StepProfileTest, AStepThatWaitsForEarlierWorkBeginsWhenThatEnds) {
  TraceBuilder b;
  b.Step("step_1", 1000, 2000);
  b.Step("step_2", 2000, 3000);
  b.Kernel("a", b.Launch(1100, 1105), 1110, 9000);
  b.Kernel("b", b.Launch(2100, 2105), 9010, 12000);
  // 1000 to 9000 and 9000 to 12000.
  EXPECT_EQ(BuildStepProfile(b.Build(), {}).wall_ns, 11000);

  // The work before the trace was not recorded, only how long it delayed.
  TraceBuilder c;
  c.Step("step_1", 1000, 2000);
  c.Kernel("a", c.Launch(1100, 1105), 901105, 901205);
  EXPECT_EQ(BuildStepProfile(c.Build(), {}).wall_ns, 100);
}

TEST(StepProfileTest, AStepThatTheHostHoldsUpLastsAsLongAsTheHost) {
  TraceBuilder b;
  b.Step("step_1", 1000, 2000);
  b.Step("step_2", 2500, 3500);
  b.Kernel("a", b.Launch(1100, 1105), 1110, 1120);
  b.Kernel("b", b.Launch(2600, 2605), 2610, 2620);
  EXPECT_EQ(BuildStepProfile(b.Build(), {}).wall_ns, 2000);
}

TEST(StepProfileTest, OverlapCountsOnceAsBusyTime) {
  TraceBuilder b;
  b.Step("step_1", 0, 10);
  b.Kernel("a", b.Launch(1, 2), 100, 200);
  b.Kernel("b", b.Launch(3, 4), 150, 180, /*stream=*/8);
  b.Kernel("c", b.Launch(5, 6), 190, 250, /*stream=*/9);
  const StepProfile profile = BuildStepProfile(b.Build(), {});
  EXPECT_EQ(profile.busy_ns, 150);
  EXPECT_EQ(profile.total_ns, 190);
}

TEST(StepProfileTest, EmptyTraces) {
  const StepProfile profile = BuildStepProfile({}, {});
  EXPECT_EQ(profile.total_ns, 0);
  EXPECT_EQ(profile.MsPerStep(profile.wall_ns), 0);
  EXPECT_EQ(profile.Share(0), 0);
  EXPECT_THAT(FormatStepProfile(profile), HasSubstr("0 steps of 0.000 ms"));
  EXPECT_EQ(StepProfileToJson(profile)["total_ms"], 0);
}

// Whatever the ranges, nothing is counted twice or lost.
TEST(StepProfileTest, RandomTracesAddUp) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int n) { return static_cast<int>(random() % n); };
    TraceBuilder b;
    std::vector<int> open;
    int64_t now = 0;
    int64_t expected = 0;
    bool in_step = false;
    for (int i = 0; i < 500; ++i) {
      now += 10;
      const int what = draw(4);
      if (what == 0 && open.size() < 7) {
        constexpr const char* kNames[] = {"forward", "recompute", "block_2",
                                          "block_11", "attention"};
        const Level level = open.empty() && draw(3) > 0       ? Level::kStep
                            : open.size() > 2 && draw(2) == 0 ? Level::kOp
                                                              : Level::kPhase;
        in_step = open.empty() ? level == Level::kStep : in_step;
        open.push_back(b.Range(level, kNames[draw(5)],
                               open.empty() ? -1 : open.back(), now,
                               INT64_MAX));
      } else if (what == 1 && !open.empty()) {
        b.trace().ranges[open.back()].end_ns = now;
        open.pop_back();
      } else {
        const int64_t ns = draw(1000);
        const int64_t begin = now + draw(5000);
        b.Kernel(draw(2) == 0 ? kGemm : kSwiGlu, b.Launch(now + 1, now + 2),
                 begin, begin + ns, draw(3));
        if (open.empty() || in_step) expected += ns;
      }
    }
    const StepProfile profile = BuildStepProfile(b.Build(), Rows());
    EXPECT_EQ(profile.total_ns, expected) << seed;
    EXPECT_EQ(Sum(profile.classes), expected);
    EXPECT_EQ(Sum(profile.phases), expected);
    EXPECT_EQ(Sum(profile.blocks), expected);
    int64_t ops = 0;
    for (const OpTime& op : profile.ops) ops += op.ns;
    EXPECT_EQ(ops, expected);
    EXPECT_LE(profile.busy_ns, profile.total_ns);
  }
}

TEST(StepProfileFormatTest, TableFitsAndFoldsBlocks) {
  StepWriter writer;
  writer.Step("step_3");
  writer.Step("step_4");
  writer.builder().trace().dropped = 5;
  const StepProfile profile =
      BuildStepProfile(writer.builder().Build(), Rows());
  const std::string text = FormatStepProfile(profile, /*max_kernels=*/3);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
  for (const char* part :
       {"2 steps of ", "incomplete: 5 records", "block_*/attention", "\nGEMM  ",
        "softmax/products", "50.0%", "2 blocks of 0.003 to 0.003 ms",
        "by 4 more"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, ::testing::Not(HasSubstr("block_0/")));
}

// The profiles of a counted step and of two traced ones.
StepProfile CountedProfile() {
  StepWriter counted, traced;
  counted.Step("step_2");
  Trace& trace = counted.builder().trace();
  for (const DeviceActivity& activity : trace.activities) {
    KernelCounters counters{
        .launches = 1,
        .ns = static_cast<double>(activity.end_ns - activity.begin_ns)};
    const std::string& symbol = trace.names[activity.name];
    if (activity.kind != Kind::kKernel) continue;
    if (symbol == kGemm) {
      // 1000 ns at 90 %, 100 ns and 60 ns at none.
      counters.tensor_ns = counters.ns == 1000 ? 900 : 0;
      counters.dram_bytes = 2 * counters.ns;
      counters.l2_hits = counters.ns;
      counters.l2_lookups = 4 * counters.ns;
    } else if (symbol == kAdamW) {
      counters.dram_bytes = 5;
      counters.l2_hits = counters.l2_lookups = 0;
    }
    trace.counters[activity.correlation] = counters;
  }
  StepProfile of_counted = BuildStepProfile(counted.builder().Build(), Rows());
  of_counted.counted_step = 2;
  traced.Step("step_7");
  traced.Step("step_8");
  StepProfile profile = BuildStepProfile(traced.builder().Build(), Rows());
  AddCounters(of_counted, &profile);
  return profile;
}

const KernelTime& KernelOf(const StepProfile& profile,
                           absl::string_view symbol) {
  for (const KernelTime& kernel : profile.kernels) {
    if (kernel.symbol == symbol) return kernel;
  }
  ADD_FAILURE() << symbol;
  return profile.kernels.front();
}

TEST(KernelCountersTest, AreMeansOverTheLaunchesOfAKernel) {
  const StepProfile profile = CountedProfile();
  EXPECT_EQ(profile.counted_step, 2);
  const KernelTime& gemm = KernelOf(profile, kGemm);
  ASSERT_TRUE(gemm.counters.has_value());
  EXPECT_EQ(gemm.counters->launches, 12);
  EXPECT_DOUBLE_EQ(*gemm.counters->tensor_share(), 900.0 / 1160);
  EXPECT_DOUBLE_EQ(*gemm.counters->dram_bytes_per_launch(), 2 * 1160.0 / 3);
  EXPECT_DOUBLE_EQ(*gemm.counters->l2_hit_share(), 0.25);
  // Two blocks, forward and backward.
  ASSERT_TRUE(gemm.cost.has_value());
  EXPECT_DOUBLE_EQ(*FlopPerDramByte(gemm, profile),
                   gemm.cost->flops / (4 * 2 * 1160));
}

TEST(KernelCountersTest, WhatIsNotCountedIsAbsent) {
  const StepProfile profile = CountedProfile();
  const KernelTime& adamw = KernelOf(profile, kAdamW);
  ASSERT_TRUE(adamw.counters.has_value());
  EXPECT_FALSE(adamw.counters->tensor_share().has_value());
  EXPECT_FALSE(adamw.counters->l2_hit_share().has_value());  // no requests
  EXPECT_DOUBLE_EQ(*FlopPerDramByte(adamw, profile), 10.0 / 5);
  const KernelTime& softmax = KernelOf(profile, kSoftmax);
  ASSERT_TRUE(softmax.counters.has_value());
  EXPECT_FALSE(softmax.counters->dram_bytes_per_launch().has_value());
  EXPECT_FALSE(FlopPerDramByte(softmax, profile).has_value());
  EXPECT_FALSE(KernelOf(profile, "copy H2D").counters.has_value());
}

TEST(KernelCountersTest, TablesAndJsonHaveThem) {
  StepProfile profile = CountedProfile();
  const std::string text = FormatStepProfile(profile);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
  EXPECT_THAT(text, HasSubstr("\ncounters of step 2, "));
  EXPECT_THAT(text, HasSubstr("\n      77.6%     0.001         2    25.0%"));
  EXPECT_THAT(text, HasSubstr("\n        n/a     0.000         0      n/a"));
  const nlohmann::ordered_json json = StepProfileToJson(profile);
  EXPECT_EQ(json["counters"]["step"], 2);
  EXPECT_EQ(json["kernels"][0]["l2_hit_pct"], 25);
  ASSERT_EQ(json["kernels"][1]["op"], "optimizer adamw");
  EXPECT_EQ(json["kernels"][1]["dram_bytes"], 5);
  EXPECT_EQ(json["kernels"][1]["flop_per_dram_byte"], 2);
  EXPECT_TRUE(json["kernels"][1]["tensor_pipe_pct"].is_null());

  profile.counted_step = 0;
  profile.not_counted = "no permission";
  for (KernelTime& kernel : profile.kernels) kernel.counters.reset();
  EXPECT_THAT(FormatStepProfile(profile),
              HasSubstr("\ncounters: none: no permission\n"));
  EXPECT_EQ(StepProfileToJson(profile)["counters"]["not_counted"],
            "no permission");
  profile.not_counted = "";
  EXPECT_THAT(FormatStepProfile(profile),
              ::testing::Not(HasSubstr("counters")));
  EXPECT_TRUE(StepProfileToJson(profile)["counters"].is_null());
}

TEST(StepProfileFormatTest, JsonHasEveryFigurePerStep) {
  StepWriter writer;
  writer.Step("step_3");
  writer.Step("step_4");
  const StepProfile profile =
      BuildStepProfile(writer.builder().Build(), Rows());
  const nlohmann::ordered_json json = StepProfileToJson(profile);
  EXPECT_DOUBLE_EQ(json["total_ms"], profile.total_ns * 1e-6 / 2);
  EXPECT_EQ(json["activities"], 25);
  EXPECT_EQ(json["classes"][0]["name"], "GEMM");
  EXPECT_DOUBLE_EQ(json["gemm_share"], json["classes"][0]["share"]);
  EXPECT_EQ(json["kernels"][0]["symbol"], kGemm);
  EXPECT_EQ(json["kernels"][0]["class"], "GEMM");
  EXPECT_EQ(json["kernels"][0]["instances"], 12);
  EXPECT_DOUBLE_EQ(json["attention"][0]["softmax_to_products"], 0.5);
  const nlohmann::ordered_json& qkv = json["ops"][0];
  EXPECT_EQ(qkv["part"], "block_0/attention");
  EXPECT_DOUBLE_EQ(qkv["roofline_share"], 1);
  EXPECT_TRUE(json["ops"][2]["roofline_ms"].is_null());  // swiglu's is unknown
  EXPECT_FALSE(json["ops"].back().contains("flops"));
  EXPECT_GT(json["kernels"][0]["tflop_per_s"], 0);
  EXPECT_TRUE(json["kernels"][0]["gb_per_s"].is_null());
  EXPECT_TRUE(json["rates"]["gb_per_s"].is_null());
}

}  // namespace
}  // namespace tessera::testing
