#include "framework/params/parameter_store.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <xxhash.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/error_budget.h"
#include "tests/testing/weights.h"

namespace tessera {
namespace {

using testing::BitEqual;
using ::testing::HasSubstr;

std::unique_ptr<ParameterStore> MakeStore(
    const std::vector<ParameterBlockSpec>& blocks,
    const ParameterStoreOptions& options = {}) {
  auto store = ParameterStore::Create(blocks, options);
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

ParameterBlockSpec Single(const std::string& name, std::vector<int64_t> shape,
                          Init init = Init::kLinear, bool trainable = true) {
  return {name, {{name, std::move(shape), init}}, trainable};
}

// A toy model: first a frozen embedding, a fused block, odd sizes.
std::vector<ParameterBlockSpec> ToyBlocks() {
  return {Single("embedding", {11, 6}, Init::kEmbedding, /*trainable=*/false),
          {"qkv",
           {{"q", {6, 6}, Init::kLinear},
            {"k", {3, 6}, Init::kLinear},
            {"v", {3, 6}, Init::kLinear}}},
          Single("norm", {6}, Init::kOnes),
          Single("bias", {1}, Init::kZeros),
          Single("head", {43, 6}, Init::kLinear)};
}

// `blocks`, of which ops read the vectors in FP32, and matrices in BF16.
std::vector<ParameterBlockSpec> ReadLikeAModel(
    std::vector<ParameterBlockSpec> blocks) {
  for (ParameterBlockSpec& block : blocks) {
    const bool matrix = block.members[0].shape.size() == 2;
    block.reads = {matrix ? at::kBFloat16 : at::kFloat};
  }
  return blocks;
}

ParameterStoreOptions Bf16() {
  ParameterStoreOptions options;
  options.weights.compute = at::kBFloat16;
  options.gradient = at::kBFloat16;
  return options;
}

const ParameterSlice& SliceOf(const ParameterStore& store,
                              const std::string& name) {
  for (const ParameterSlice& slice : store.slices()) {
    if (slice.name == name) return slice;
  }
  ADD_FAILURE() << "no slice " << name;
  return store.slices()[0];
}

at::Tensor MasterOf(const ParameterStore& store, const std::string& name) {
  const ParameterSlice& slice = SliceOf(store, name);
  const at::Tensor values =
      at::empty({slice.numel}, store.options().weights.master);
  store.Read(slice, 0, values);
  return values;
}

TEST(ParameterStoreLayout, PutsTrainableBlocksFirstAndAligned) {
  const auto store = MakeStore(ToyBlocks());
  std::vector<std::pair<std::string, int64_t>> places;
  for (const ParameterSlice& slice : store->slices()) {
    places.emplace_back(slice.name, slice.offset);
  }
  // Members of a block are contiguous; blocks start at multiples of 128.
  const std::vector<std::pair<std::string, int64_t>> expected = {
      {"q", 0},      {"k", 36},     {"v", 54},         {"norm", 128},
      {"bias", 256}, {"head", 384}, {"embedding", 768}};
  EXPECT_EQ(places, expected);
  EXPECT_EQ(store->trainable_extent(), 768);
  EXPECT_EQ(store->grad().numel(), 768);
  EXPECT_EQ(store->weights().master.numel(), 896);
  EXPECT_EQ(store->num_parameters(), 66 + 72 + 6 + 1 + 258);
}

TEST(ParameterStoreLayout, AlignsEveryBlockTo256BytesInEveryBuffer) {
  const auto whole = MakeStore(ToyBlocks(), Bf16());
  const auto split = MakeStore(ReadLikeAModel(ToyBlocks()), Bf16());
  const auto bytes_from = [](const at::Tensor& part, const at::Tensor& whole) {
    return static_cast<const char*>(part.const_data_ptr()) -
           static_cast<const char*>(whole.const_data_ptr());
  };
  for (const char* name : {"qkv", "norm", "bias", "head"}) {
    SCOPED_TRACE(name);
    Parameter& block = whole->Get(name);
    EXPECT_EQ(bytes_from(block.As(at::kFloat), whole->weights().master) % 256,
              0);
    EXPECT_EQ(
        bytes_from(block.As(at::kBFloat16), whole->weights().shadow) % 256, 0);
    EXPECT_EQ(bytes_from(block.grad(), whole->grad()) % 256, 0);
  }
  for (const char* name : {"qkv", "head"}) {
    EXPECT_EQ(
        bytes_from(split->Get(name).As(at::kBFloat16), split->weights().high) %
            256,
        0)
        << name;
  }
}

TEST(ParameterStoreLayout, KeepsZerosInTheGaps) {
  const auto store = MakeStore(ToyBlocks(), Bf16());
  at::Tensor gap = at::ones({store->weights().master.numel()}, at::kBool);
  for (const ParameterSlice& slice : store->slices()) {
    gap.narrow(0, slice.offset, slice.numel).fill_(false);
  }
  EXPECT_EQ(gap.sum().item<int64_t>(), 896 - store->num_parameters());
  for (const at::Tensor& buffer : store->weights().Defined()) {
    EXPECT_EQ(buffer.masked_select(gap).count_nonzero().item<int64_t>(), 0);
  }
}

TEST(ParameterStoreLayout, FusedBlockStacksItsMembers) {
  const auto store = MakeStore(ToyBlocks());
  const at::Tensor& qkv = store->Get("qkv").As(at::kFloat);
  EXPECT_EQ(qkv.sizes(), at::IntArrayRef({12, 6}));
  EXPECT_TRUE(
      BitEqual(qkv.detach().narrow(0, 6, 3).flatten(), MasterOf(*store, "k")));
}

TEST(ParameterStoreLayout, HasNoShadowIfComputeIsMaster) {
  const auto store = MakeStore(ToyBlocks());
  EXPECT_FALSE(store->weights().shadow.defined());
  EXPECT_DEATH(store->Get("head").As(at::kBFloat16), "head is not kept in");
}

TEST(ParameterStoreLayout, GetDiesOnAnUnknownName) {
  const auto store = MakeStore(ToyBlocks());
  EXPECT_DEATH(store->Get("q"), "no parameter block is named q");
}

TEST(ParameterStoreLayout, AllFrozenLeavesAnEmptyGradient) {
  const auto store = MakeStore({Single("w", {4, 4}, Init::kLinear, false)});
  EXPECT_EQ(store->trainable_extent(), 0);
  EXPECT_EQ(store->grad().numel(), 0);
  EXPECT_FALSE(store->Get("w").trainable());
}

TEST(ParameterStoreLayout, KeepsABlockInTheFormItsReadersNeed) {
  const at::ScalarType fp32 = at::kFloat, bf16 = at::kBFloat16,
                       fp16 = at::kHalf;
  struct Case {
    WeightDtypes dtypes;
    std::vector<at::ScalarType> reads;
    WeightBytes expected;  // of 128 elements
  };
  for (const Case& c : std::vector<Case>{
           {{fp32, bf16}, {bf16}, {.high = 256, .low = 256}},
           {{fp32, bf16, /*read_only=*/true}, {bf16}, {.high = 256}},
           {{fp32, bf16}, {fp32}, {.master = 512}},
           {{fp32, bf16}, {fp32, bf16}, {.master = 512, .shadow = 256}},
           {{fp32, bf16}, {}, {.master = 512, .shadow = 256}},
           {{fp32, fp16}, {fp16}, {.master = 512, .shadow = 256}},
           {{fp32, fp16}, {fp32}, {.master = 512, .shadow = 256}},
           {{fp32, fp32}, {fp32}, {.master = 512}},
           {{bf16, bf16}, {bf16}, {.master = 256}}}) {
    SCOPED_TRACE(::testing::Message()
                 << c.dtypes.master << ", " << c.dtypes.compute << ": "
                 << c.reads.size() << " reads");
    for (const bool trainable : {true, false}) {
      ParameterBlockSpec block = Single("w", {16, 8}, Init::kLinear, trainable);
      block.reads = c.reads;
      const auto layout = PlaceParameters({block}, c.dtypes);
      ASSERT_TRUE(layout.ok());
      const auto expect = [](const WeightBytes& got, const WeightBytes& want) {
        EXPECT_EQ(got.master, want.master);
        EXPECT_EQ(got.shadow, want.shadow);
        EXPECT_EQ(got.high, want.high);
        EXPECT_EQ(got.low, want.low);
      };
      expect(layout->weights, c.expected);
      expect(layout->trainable_weights, trainable ? c.expected : WeightBytes());
      const auto store =
          MakeStore({block}, {.weights = c.dtypes, .gradient = fp32});
      const auto bytes = [](const at::Tensor& buffer) {
        return buffer.defined() ? static_cast<int64_t>(buffer.nbytes()) : 0;
      };
      expect({bytes(store->weights().master), bytes(store->weights().shadow),
              bytes(store->weights().high), bytes(store->weights().low)},
             c.expected);
      for (const at::ScalarType dtype : c.reads) {
        EXPECT_EQ(store->Get("w").As(dtype).scalar_type(), dtype);
      }
    }
  }
}

TEST(ParameterStoreViews, ShowTheMasterAndTheShadow) {
  const auto store = MakeStore(ToyBlocks(), Bf16());
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    EXPECT_EQ(store->Get("head").As(dtype).scalar_type(), dtype);
  }
  EXPECT_DEATH(store->Get("head").As(at::kHalf), "is not kept in");
}

TEST(ParameterStoreGradients, GapsAreZeroed) {
  const auto store = MakeStore(ToyBlocks());
  store->grad().fill_(7);
  store->ZeroGradientGaps();
  int64_t kept = 0;
  for (const ParameterSlice& slice : store->slices()) {
    if (!slice.trainable) continue;
    kept += slice.numel;
    EXPECT_TRUE(store->grad()
                    .narrow(0, slice.offset, slice.numel)
                    .eq(7)
                    .all()
                    .item<bool>());
  }
  EXPECT_LT(kept, store->grad().numel());
  EXPECT_EQ(store->grad().count_nonzero().item<int64_t>(), kept);
}

TEST(ParameterStoreShadow, IsTheMasterRounded) {
  const auto store = MakeStore(ToyBlocks(), Bf16());
  const WeightBuffers& weights = store->weights();
  EXPECT_TRUE(BitEqual(weights.shadow, weights.master.to(at::kBFloat16)));
  store->Write(SliceOf(*store, "k"), 3, at::full({5}, 0.1));
  EXPECT_TRUE(BitEqual(weights.shadow, weights.master.to(at::kBFloat16)));
  EXPECT_EQ(MasterOf(*store, "k").eq(0.1f).sum().item<int64_t>(), 5);
}

// Every form holds the same master values, and a part can be overwritten.
TEST(ParameterStoreSplit, HoldsTheFp32ValuesExactly) {
  const auto plain = MakeStore(ToyBlocks());
  const auto split = MakeStore(ReadLikeAModel(ToyBlocks()), Bf16());
  EXPECT_TRUE(SliceOf(*split, "v").weights.split);
  EXPECT_FALSE(SliceOf(*split, "norm").weights.split);
  EXPECT_TRUE(BitEqual(WeightsOf(*split), WeightsOf(*plain)));
  for (ParameterStore* const store : {plain.get(), split.get()}) {
    store->Write(SliceOf(*store, "v"), 7, at::tensor({0.1, -1e-40, 3e38}));
  }
  EXPECT_TRUE(BitEqual(WeightsOf(*split), WeightsOf(*plain)));
  const at::Tensor part = at::empty({2});
  split->Read(SliceOf(*split, "v"), 8, part);
  EXPECT_TRUE(BitEqual(part, MasterOf(*plain, "v").narrow(0, 8, 2)));
  EXPECT_DEATH(split->Get("head").As(at::kFloat), "head is not kept in Float");
}

TEST(ParameterStoreSplit, ReadOnlyWeightsAreWhatOpsRead) {
  ParameterStoreOptions options = Bf16();
  options.weights.read_only = true;
  const std::vector<ParameterBlockSpec> blocks = ReadLikeAModel(ToyBlocks());
  const auto store = MakeStore(blocks, options);
  const auto trained = MakeStore(blocks, Bf16());
  EXPECT_FALSE(store->weights().low.defined());
  EXPECT_EQ(store->weights().high.count_nonzero().item<int64_t>(), 0);
  for (const ParameterSlice& slice : store->slices()) {
    const at::Tensor values = at::randn({slice.numel}, at::kFloat);
    store->Write(slice, 0, values);
    trained->Write(slice, 0, values);
  }
  for (const ParameterBlockSpec& block : blocks) {
    EXPECT_TRUE(BitEqual(store->Get(block.name).As(block.reads[0]),
                         trained->Get(block.name).As(block.reads[0])))
        << block.name;
  }
}

struct InitCase {
  Init init;
  double stddev;
  uint64_t known_hash;
};

class InitialValues : public ::testing::TestWithParam<InitCase> {};

// For a normal truncated at 3 standard deviations, the variance is 1 - 6 phi(3)
// / P(|z| < 3) = 0.97334 of the original one, and 0.68454 of the values lie
// within one standard deviation.
TEST_P(InitialValues, AreATruncatedNormal) {
  const double stddev = GetParam().stddev;
  const auto store = MakeStore({Single("w", {512, 1024}, GetParam().init)});
  const at::Tensor values = MasterOf(*store, "w").to(at::kDouble) / stddev;
  const auto count = static_cast<double>(values.numel());
  EXPECT_NEAR(values.mean().item<double>(), 0, 5 / std::sqrt(count));
  EXPECT_NEAR(values.var().item<double>(), 0.97334, 0.01);
  EXPECT_NEAR(values.abs().lt(1).sum().item<double>() / count, 0.68454, 0.004);
  const double largest = values.abs().max().item<double>();
  EXPECT_LE(largest, 3 * (1 + 1e-6));
  EXPECT_GT(largest, 2.99);
}

// Neighbouring values share a counter of the generator, but must be
// uncorrelated, as must the values of different parameters.
TEST_P(InitialValues, AreUncorrelated) {
  const auto store = MakeStore({Single("a", {512, 1024}, GetParam().init),
                                Single("b", {512, 1024}, GetParam().init)});
  const auto correlation = [](const at::Tensor& x, const at::Tensor& y) {
    return (x * y).mean().item<double>() /
           std::sqrt((x * x).mean().item<double>() *
                     (y * y).mean().item<double>());
  };
  const at::Tensor a = MasterOf(*store, "a"), b = MasterOf(*store, "b");
  const int64_t numel = a.numel();
  const double bound = 5 / std::sqrt(static_cast<double>(numel));
  EXPECT_NEAR(correlation(a, b), 0, bound);
  for (const int64_t lag : {1, 2, 4}) {
    EXPECT_NEAR(
        correlation(a.narrow(0, 0, numel - lag), a.narrow(0, lag, numel - lag)),
        0, bound)
        << "lag " << lag;
  }
}

// A seed means the same values on every machine and in every version.
TEST_P(InitialValues, AreKnown) {
  const auto store =
      MakeStore({Single("w", {1021, 257}, GetParam().init)}, {.seed = 5});
  const at::Tensor values = MasterOf(*store, "w");
  EXPECT_EQ(XXH3_64bits(values.const_data_ptr(), values.nbytes()),
            GetParam().known_hash);
}

INSTANTIATE_TEST_SUITE_P(
    , InitialValues,
    ::testing::Values(InitCase{Init::kLinear, std::sqrt(2.0 / (512 + 1024)),
                               0x20708302b0f3e952},
                      InitCase{Init::kEmbedding, 1.0, 0x76e4712e55b2032e},
                      InitCase{Init::kTiedEmbedding, std::sqrt(1.0 / 1024),
                               0xd2d2331f6c40a304}));

TEST(InitialValuesOf, NormsAndBiasesAreConstants) {
  const auto store = MakeStore(ToyBlocks());
  EXPECT_TRUE(MasterOf(*store, "norm").eq(1).all().item<bool>());
  EXPECT_TRUE(MasterOf(*store, "bias").eq(0).all().item<bool>());
}

TEST(InitialValuesOf, DependOnlyOnNameAndSeed) {
  const auto fused = MakeStore(ToyBlocks());
  const auto alone = MakeStore({Single("v", {3, 6})});
  EXPECT_TRUE(BitEqual(MasterOf(*fused, "v"), MasterOf(*alone, "v")));
  EXPECT_FALSE(BitEqual(MasterOf(*fused, "v"), MasterOf(*fused, "k")));
  ParameterStoreOptions reseeded;
  reseeded.seed = 1;
  const auto other = MakeStore(ToyBlocks(), reseeded);
  EXPECT_FALSE(BitEqual(MasterOf(*fused, "v"), MasterOf(*other, "v")));
}

TEST(InitialValuesOf, DoNotDependOnThreads) {
  const std::vector<ParameterBlockSpec> blocks = {Single("w", {257, 1021})};
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto serial = MakeStore(blocks);
  at::set_num_threads(3);
  const auto parallel = MakeStore(blocks);
  at::set_num_threads(threads);
  EXPECT_TRUE(BitEqual(WeightsOf(*serial), WeightsOf(*parallel)));
}

TEST(InitialValuesOf, OfALowPrecisionMasterAreRoundedFp32Values) {
  ParameterStoreOptions pure = Bf16();
  pure.weights.master = at::kBFloat16;
  const auto store = MakeStore(ToyBlocks(), pure);
  EXPECT_FALSE(store->weights().shadow.defined());
  EXPECT_TRUE(BitEqual(WeightsOf(*store),
                       WeightsOf(*MakeStore(ToyBlocks())).to(at::kBFloat16)));
}

struct BadCase {
  std::string what;
  std::vector<ParameterBlockSpec> blocks;
  std::string message;
};

class BadBlocks : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadBlocks, AreRejectedByName) {
  const auto store = ParameterStore::Create(GetParam().blocks, {});
  EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(store.status().message()),
              HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    , BadBlocks,
    ::testing::Values(
        BadCase{"SameBlockName",
                {Single("w", {2, 2}), Single("w", {2, 2})},
                "two parameter blocks are named w"},
        BadCase{"SameMemberName",
                {{"a", {{"w", {2}}}}, {"b", {{"w", {2}}}}},
                "two parameters are named w"},
        BadCase{"NoMembers", {{"a", {}}}, "block a has no members"},
        BadCase{"NoName", {{"a", {{"", {2}}}}}, "a parameter has no name"},
        BadCase{"EmptySize",
                {Single("w", {0, 2})},
                "w has the shape [0, 2]; each size must be >= 1"},
        BadCase{"LinearOfOneDimension",
                {Single("w", {4})},
                "w has the shape [4]; a linear weight's"},
        BadCase{"UnstackableMembers",
                {{"qkv", {{"q", {4, 3}}, {"k", {4, 2}}}}},
                "qkv: k [4, 2] cannot be stacked under q [4, 3]"},
        BadCase{"UnstackableScalars",
                {{"ab", {{"a", {}}, {"b", {}}}}},
                "b [] cannot be stacked under a []"}),
    [](const auto& info) { return info.param.what; });

class GpuInitialValues : public ::testing::TestWithParam<at::ScalarType> {};

// Sizes and offsets that are no multiples of four, the number of values that a
// counter of the generator yields, more values than one thread block writes,
// and seeds of more than 32 bits.
TEST_P(GpuInitialValues, HaveTheBitsOfTheCpus) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  std::vector<ParameterBlockSpec> blocks = ToyBlocks();
  blocks.push_back({"odd",
                    {{"a", {1, 257}, Init::kLinear},
                     {"b", {1021, 257}, Init::kEmbedding},
                     {"c", {2, 257}, Init::kTiedEmbedding}}});
  ParameterStoreOptions options{.weights = {GetParam(), at::kBFloat16}};
  for (const uint64_t seed :
       {uint64_t{0}, uint64_t{5}, uint64_t{0xfedcba9876543210}}) {
    for (const auto& read : {blocks, ReadLikeAModel(blocks)}) {
      options.seed = seed;
      options.device = at::kCPU;
      const auto cpu = MakeStore(read, options);
      options.device = at::Device(at::kCUDA, 0);
      const auto gpu = MakeStore(read, options);
      const std::vector<at::Tensor> expected = cpu->weights().Defined();
      const std::vector<at::Tensor> buffers = gpu->weights().Defined();
      ASSERT_EQ(buffers.size(), expected.size());
      for (size_t i = 0; i < buffers.size(); ++i) {
        EXPECT_TRUE(BitEqual(buffers[i].cpu(), expected[i]))
            << seed << ", buffer " << i;
      }
      EXPECT_TRUE(BitEqual(WeightsOf(*gpu), WeightsOf(*cpu))) << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, GpuInitialValues,
                         ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf,
                                           at::kDouble),
                         [](const auto& info) {
                           return std::string(c10::toString(info.param));
                         });

// Where this rank has element `i` of a whole buffer; nullopt if elsewhere.
// `first` and `size` are those of the section around it.
std::optional<int64_t> PlaceOf(const Division& division, int64_t i,
                               int64_t first, int64_t size) {
  if (division.shards == 1 || first < division.replicated) return i;
  const int64_t each = size / division.shards;
  if ((i - first) / each != division.index) return std::nullopt;
  return i - division.Shift(first, first + size);
}

// Expects each buffer of weights to be this rank's part of the whole one.
void ExpectPart(const ParameterStore& part, const ParameterStore& whole) {
  const auto expect = [&](const at::Tensor& held, const at::Tensor& all,
                          const Division& division, auto first_of) {
    if (!all.defined()) return;
    EXPECT_EQ(held.numel(), all.numel() - division.elsewhere());
    for (const ParameterSection& section : whole.sections()) {
      const std::optional<int64_t> first = first_of(section);
      if (!first.has_value()) continue;
      for (int64_t i = *first; i < *first + section.size(); ++i) {
        const auto place = PlaceOf(division, i, *first, section.size());
        if (!place.has_value()) continue;
        ASSERT_TRUE(BitEqual(held.narrow(0, *place, 1), all.narrow(0, i, 1)))
            << i;
      }
    }
    const int64_t frozen = all.numel() - division.trained;
    EXPECT_TRUE(BitEqual(held.narrow(0, held.numel() - frozen, frozen),
                         all.narrow(0, division.trained, frozen)));
  };
  using Place = std::optional<int64_t>;
  const auto unsplit = [](const ParameterSection& section) {
    return section.weights.split ? Place() : Place(section.weights.offset);
  };
  const auto split = [](const ParameterSection& section) {
    return section.weights.split ? Place(section.weights.offset) : Place();
  };
  const auto shadow = [](const ParameterSection& section) {
    return section.weights.shadow;
  };
  const ParameterStore::Divisions& divisions = part.divisions();
  const WeightBuffers &mine = part.weights(), &all = whole.weights();
  expect(mine.master, all.master, divisions.master, unsplit);
  expect(mine.shadow, all.shadow, divisions.shadow, shadow);
  expect(mine.high, all.high, divisions.high, split);
  expect(mine.low, all.low, divisions.low, split);
}

// In every stage of ZeRO, what ranks have of each buffer is what one rank has
// there, each element of a divided section is on one rank, and Write() writes
// what the rank has.
class ParameterStoreSharding
    : public ::testing::TestWithParam<std::vector<ParameterBlockSpec>> {};

TEST_P(ParameterStoreSharding, PartsOfAllRanksMakeTheWhole) {
  const std::vector<ParameterBlockSpec>& blocks = GetParam();
  ParameterStoreOptions fp16 = Bf16();
  fp16.weights.compute = at::kHalf;
  for (const int shards : {2, 3, 8}) {
    for (const int zero : {1, 2, 3}) {
      for (ParameterStoreOptions options : {Bf16(), fp16}) {
        options.sharding = {.shards = shards};
        const auto whole = MakeStore(blocks, options);
        std::vector<int> holders(whole->trainable_extent(), 0);
        for (int index = 0; index < shards; ++index) {
          SCOPED_TRACE(absl::StrCat(index, " of ", shards, ", ZeRO ", zero));
          options.sharding = {.shards = shards, .index = index, .zero = zero};
          const auto part = MakeStore(blocks, options);
          for (const auto& store : {whole.get(), part.get()}) {
            for (const ParameterSlice& slice : store->slices()) {
              if (slice.offset % 3 == 0) continue;  // keeps its initial values
              const at::Tensor values =
                  at::linspace(-2, 7, slice.numel, at::kFloat);
              const int64_t half = slice.numel / 2;
              store->Write(slice, 0, values.slice(0, 0, half));
              store->Write(slice, half, values.slice(0, half));
            }
          }
          ExpectPart(*part, *whole);
          EXPECT_EQ(part->grad().numel(),
                    whole->grad().numel() / (zero >= 2 ? shards : 1));
          for (const ParameterSlice& slice : part->slices()) {
            if (!slice.trainable) continue;
            const Division& division = part->divisions().moments;
            const HeldRange held = part->HeldOf(division, slice);
            const ParameterSection& section = part->SectionOf(slice.offset);
            for (int64_t i = 0; i < held.numel; ++i) {
              const int64_t element = slice.offset + held.begin + i;
              EXPECT_EQ(
                  PlaceOf(division, element, section.begin, section.size()),
                  held.place + i);
              ++holders[element];
            }
          }
        }
        for (const ParameterSlice& slice : whole->slices()) {
          for (int64_t i = 0; slice.trainable && i < slice.numel; ++i) {
            EXPECT_EQ(holders[slice.offset + i], 1) << slice.name << ", " << i;
          }
        }
      }
    }
  }
}

// A block that ranks divide has no whole weights for an op to read.
TEST_P(ParameterStoreSharding, StageThreeLeavesVectorsAndFrozenBlocksWhole) {
  const std::vector<ParameterBlockSpec>& blocks = GetParam();
  ParameterStoreOptions options = Bf16();
  options.sharding = {.shards = 2, .index = 1, .zero = 3};
  const auto store = MakeStore(blocks, options);
  int divided = 0;
  for (const ParameterBlockSpec& block : blocks) {
    const bool vector = BlockShape(block).size() == 1;
    EXPECT_EQ(store->Get(block.name).whole(), vector || !block.trainable)
        << block.name;
    EXPECT_EQ(store->Get(block.name).trainable(), block.trainable);
    EXPECT_FALSE(store->Get(block.name).grad().defined());
    divided += !store->Get(block.name).whole();
  }
  EXPECT_GT(divided, 0);
}

// Two units, of which Muon updates the matrices.
std::vector<ParameterBlockSpec> MuonBlocks() {
  std::vector<ParameterBlockSpec> blocks = ToyBlocks();
  for (const char* name : {"up", "down"}) {
    blocks.push_back(Single(name, {16, 16}, Init::kLinear));
    blocks.back().unit = "second";
  }
  for (ParameterBlockSpec& block : blocks) {
    block.muon = block.trainable && block.members[0].shape.size() == 2;
    block.row_moments = block.muon;
  }
  return blocks;
}

INSTANTIATE_TEST_SUITE_P(, ParameterStoreSharding,
                         ::testing::Values(ReadLikeAModel(ToyBlocks()),
                                           ReadLikeAModel(MuonBlocks())));

TEST(ParameterStoreMuon, AMatrixAndItsRowsAreOnOneRank) {
  for (const int shards : {2, 3, 8}) {
    std::map<std::string, int> holders;
    for (int index = 0; index < shards; ++index) {
      const auto store = MakeStore(
          ReadLikeAModel(MuonBlocks()),
          {.sharding = {.shards = shards, .index = index, .zero = 1}});
      const int64_t second = store->second_moments() / shards;
      std::vector<int> taken(second, 0);
      for (const ParameterSlice& slice : store->slices()) {
        if (!slice.muon) continue;
        const HeldRange held = store->HeldOf(store->divisions().moments, slice);
        const HeldRange rows = store->HeldRowsOf(slice);
        EXPECT_EQ(rows.numel, held.numel > 0 ? slice.shape[0] : 0);
        if (held.numel == 0) continue;
        EXPECT_EQ(held.numel, slice.numel) << slice.name;
        ++holders[slice.name];
        ASSERT_GE(rows.place, store->adamw_extent() / shards);
        ASSERT_LE(rows.place + rows.numel, second);
        for (int64_t i = 0; i < rows.numel; ++i) ++taken[rows.place + i];
      }
      for (const int times : taken) EXPECT_LE(times, 1);
    }
    EXPECT_EQ(holders.size(), 6u);
    for (const auto& [name, ranks] : holders) EXPECT_EQ(ranks, 1) << name;
  }
}

}  // namespace
}  // namespace tessera
