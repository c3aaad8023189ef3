#include "trainers/plan/out_of_memory_error.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;

// The message. Checks the status code.
std::string Message(absl::string_view request, const MemoryReport& report,
                    const MemoryChoices& choices) {
  const absl::Status status = OutOfMemoryError(
      request, report,
      MemoryAdvice(report, choices, [](const std::string&) { return true; }));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  return std::string(status.message());
}

TEST(OutOfMemoryErrorTest, AdviceIsOrderedByCost) {
  const MemoryReport report = {.parameters = kGiB, .activations = 9 * kGiB};
  const MemoryChoices choices = {.batch_size = 24,
                                 .micro_batches = 2,
                                 .layout = MakeLayout({}, 2, 0).value(),
                                 .context = 2048,
                                 .precision = "FP32",
                                 .recompute = "NONE",
                                 .attention = "NAIVE",
                                 .leaner_attention = "FLASH_CUDA"};
  EXPECT_EQ(
      Message("2.00 GiB more", report, choices),
      absl::StrCat(
          "out of memory: 2.00 GiB more\n", FormatMemoryTable(report),
          "what would help, the cheapest first:\n"
          "  attention { backend: FLASH_CUDA }: NAIVE holds every score of "
          "every\n    head, context x context of them\n"
          "  training { micro_batches: 3 }: 4 sequences at a time per rank "
          "instead\n    of 6, the same step\n"
          "  layout { zero: 1 }: each rank has 1/2 of the optimizer's state, "
          "the\n    same step\n"
          "  recompute { policy: BLOCK }: keeps one activation per block, for "
          "about\n    a third more computation\n"
          "  precision { mode: BF16 }: activations and gradients of half the "
          "size\n"
          "  a smaller model.context_length (now 2048) or training.batch_size "
          "(now\n    24): a different run\n"));
  MemoryChoices on_cpu = choices;
  on_cpu.leaner_attention = "FLASH_TILED";
  EXPECT_THAT(Message("", report, on_cpu), HasSubstr("backend: FLASH_TILED"));
}

TEST(OutOfMemoryErrorTest, AdviceOmitsWhatDoesNotHelp) {
  const MemoryChoices choices = {.batch_size = 2,
                                 .layout = MakeLayout({}, 1, 0).value(),
                                 .context = 128,
                                 .precision = "BF16",
                                 .recompute = "NONE",
                                 .attention = "FLASH_CUDA"};
  std::vector<std::string> asked;
  const std::vector<std::string> advice =
      MemoryAdvice({.parameters = kGiB}, choices, [&](const std::string& f) {
        asked.push_back(f);
        return f == "recompute { policy: BLOCK }";
      });
  EXPECT_EQ(asked, std::vector<std::string>({"training { micro_batches: 2 }",
                                             "recompute { policy: BLOCK }",
                                             "precision { mode: BF16_PURE }"}));
  ASSERT_EQ(advice.size(), 2);
  EXPECT_THAT(advice[0], HasSubstr("recompute"));
  EXPECT_THAT(advice[1], HasSubstr("a different run"));
}

TEST(OutOfMemoryErrorTest, AdviceOmitsWhatIsAlreadySet) {
  const MemoryReport report = {.parameters = 4 * kGiB, .optimizer = 8 * kGiB};
  const MemoryChoices choices = {.batch_size = 2,
                                 .micro_batches = 1,
                                 .layout = MakeLayout({}, 2, 0).value(),
                                 .context = 128,
                                 .precision = "BF16",
                                 .recompute = "BLOCK",
                                 .attention = "FLASH_CUDA"};
  EXPECT_THAT(Message("x", report, choices),
              AllOf(Not(HasSubstr("NAIVE")), Not(HasSubstr("micro_batches")),
                    Not(HasSubstr("recompute")), Not(HasSubstr("mode: BF16 }")),
                    HasSubstr("mode: BF16_PURE }"), HasSubstr("(now 128)")));
}

}  // namespace
}  // namespace tessera
