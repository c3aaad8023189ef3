// NVRTC and the cache around it, neither of which needs a GPU. Only in CUDA
// builds.

#include "attention_backends/compiled_fused/softmax_compiler.h"

#include <cstdint>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/compiled_fused/image_cache.h"
#include "attention_backends/compiled_fused/softmax_spec.h"
#include "framework/base/file.h"
#include "gtest/gtest.h"

namespace tessera::fused {
namespace {

using ::testing::Combine;
using ::testing::Values;

constexpr FloatType kTypes[] = {FloatType::kFloat, FloatType::kHalf,
                                FloatType::kBFloat16};

SoftmaxSpec Spec(FloatType type, int64_t queries, int64_t keys, bool causal) {
  return {type, {queries, keys, causal, queries}};
}

void ExpectBothKernels(const std::string& code) {
  EXPECT_TRUE(absl::StrContains(code, "SoftmaxForward"));
  EXPECT_TRUE(absl::StrContains(code, "SoftmaxBackward"));
}

// A compute capability and the length of rows: odd; one warp per row; one CUDA
// block per row; two passes.
class CompiledFor : public ::testing::TestWithParam<std::tuple<int, int>> {};
TEST_P(CompiledFor, EveryDtypeAndMask) {
  const auto [capability, keys] = GetParam();
  for (const FloatType type : kTypes) {
    for (const bool causal : {false, true}) {
      SoftmaxSpec spec = Spec(type, keys / 2 + 1, keys, causal);
      if (causal) spec.mask.band_rows = 64;
      const auto image = CompileSoftmax(spec, capability, nullptr);
      ASSERT_TRUE(image.ok()) << image.status();
      EXPECT_TRUE(absl::StartsWith(image->code,
                                   "\x7f"
                                   "ELF"));
      EXPECT_FALSE(image->from_cache);
      ExpectBothKernels(image->code);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Each, CompiledFor,
                         Combine(Values(80, 90),
                                 Values(777, 1024, 6006, 65536)));

// The oldest GPU, and a future one, for which the driver gets PTX.
TEST(SoftmaxCompiler, CompilesForOldAndFutureGpus) {
  for (const FloatType type : kTypes) {
    const auto oldest = CompileSoftmax(Spec(type, 64, 64, true), 80, nullptr);
    ASSERT_TRUE(oldest.ok()) << oldest.status();
    ExpectBothKernels(oldest->code);
    const auto future = CompileSoftmax(Spec(type, 64, 64, true), 999, nullptr);
    ASSERT_TRUE(future.ok()) << future.status();
    EXPECT_TRUE(
        absl::StrContains(future->code, ".visible .entry SoftmaxForward"));
    EXPECT_EQ(future->code.back(), '\0');  // the driver needs it in PTX
  }
  const auto ancient =
      CompileSoftmax(Spec(FloatType::kFloat, 64, 64, true), 35, nullptr);
  EXPECT_TRUE(absl::IsUnimplemented(ancient.status())) << ancient.status();
}

TEST(SoftmaxCompiler, CompilesOnceAndAgainAfterDamage) {
  const std::string directory =
      absl::StrCat(::testing::TempDir(), "/compiles_once");
  ASSERT_TRUE(RemoveTree(directory).ok());
  const ImageCache cache(directory);
  const SoftmaxSpec spec = Spec(FloatType::kBFloat16, 256, 256, true);
  const auto compile = [&](const SoftmaxSpec& s, int capability) {
    const auto image = CompileSoftmax(s, capability, &cache);
    EXPECT_TRUE(image.ok()) << image.status();
    return image.value_or(SoftmaxImage{});
  };
  const SoftmaxImage first = compile(spec, 90);
  EXPECT_FALSE(first.from_cache);
  const SoftmaxImage second = compile(spec, 90);
  EXPECT_TRUE(second.from_cache);
  EXPECT_TRUE(second.code == first.code);  // EXPECT_EQ would print it

  // Every dtype, length, mask and GPU has its own image.
  EXPECT_FALSE(compile(Spec(FloatType::kHalf, 256, 256, true), 90).from_cache);
  EXPECT_FALSE(
      compile(Spec(FloatType::kBFloat16, 256, 264, true), 90).from_cache);
  EXPECT_FALSE(
      compile(Spec(FloatType::kBFloat16, 256, 256, false), 90).from_cache);
  EXPECT_FALSE(compile(spec, 80).from_cache);
  const auto names = ListDirectory(directory);
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_EQ(names->size(), 5u);

  for (const std::string& name : *names) {
    const std::string path = absl::StrCat(directory, "/", name);
    std::string file = *ReadFile(path);
    file[file.size() / 2] ^= 1;
    ASSERT_TRUE(WriteFileAtomically(path, file).ok());
  }
  const SoftmaxImage again = compile(spec, 90);
  EXPECT_FALSE(again.from_cache);
  ExpectBothKernels(again.code);
  EXPECT_TRUE(compile(spec, 90).from_cache);
}

TEST(SoftmaxCompiler, CompilesIfTheCacheCannotBeWritten) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/a_file");
  ASSERT_TRUE(WriteFileAtomically(file, "no folder").ok());
  const ImageCache cache(file);
  for (int i = 0; i < 2; ++i) {
    const auto image =
        CompileSoftmax(Spec(FloatType::kFloat, 8, 8, false), 90, &cache);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_FALSE(image->from_cache);
  }
}

}  // namespace
}  // namespace tessera::fused
