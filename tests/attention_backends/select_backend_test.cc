#include "attention_backends/select_backend.h"

#include <cstdint>
#include <string>
#include <vector>

#include "attention_backends/attention_backend.h"
#include "attention_backends/backend_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attention_backends/picky_backend.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PickyBackend;
using testing::SmallProblem;

const AttentionBackend* Naive() { return FindBackend("NAIVE"); }

TEST(SelectBackend, NamedBackendRuns) {
  const auto choice = SelectBackend(BackendRequest{"NAIVE"}, SmallProblem());
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->backend->name(), "NAIVE");
  EXPECT_EQ(choice->reason, "NAIVE, as configured");
}

BackendRequest NaiveHolding(int score_tensors) {
  return {.name = "NAIVE", .naive_held_score_tensors = score_tensors};
}

TEST(SelectBackend, NaiveHoldsWhatTheConfigSays) {
  constexpr const char* kReasons[] = {
      "NAIVE, as configured",
      "NAIVE, as configured, with a library softmax: holds 2 score tensors for "
      "backward",
      "NAIVE, as configured, with a hand-written softmax: holds 3 score "
      "tensors "
      "for backward"};
  const AttentionProblem problem = SmallProblem();
  const int64_t scores = problem.b * problem.h * problem.s * problem.t * 4;
  for (int held = 1; held <= 3; ++held) {
    const auto choice = SelectBackend(NaiveHolding(held), problem);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->backend->name(), "NAIVE");
    EXPECT_EQ(choice->reason, kReasons[held - 1]);
    const int64_t o = problem.b * problem.h * problem.s * problem.d * 4;
    EXPECT_EQ((choice->backend->Plan(problem).saved_bytes - o) / scores, held);
  }
  EXPECT_EQ(SelectBackend(NaiveHolding(1), problem)->backend, Naive());
  EXPECT_EQ(SelectBackend(NaiveHolding(4), problem).status(),
            absl::InvalidArgumentError("attention.naive.held_score_tensors "
                                       "must be 1, 2 or 3; is 4"));
}

TEST(SelectBackend, RefusalOfANamedBackendSaysWhy) {
  AttentionProblem problem = SmallProblem();
  problem.dtype = at::kInt;
  const auto choice = SelectBackend(BackendRequest{"NAIVE"}, problem);
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(choice.status().message(),
            "attention backend NAIVE does not support causal attention, batch "
            "2, lengths 128 x 128, heads 4/2, head dim 80, Int, with "
            "gradients, on a CPU: computes in Float, Double, BFloat16 or Half, "
            "not in Int: change precision; would run: none");
}

TEST(SelectBackend, RefusalListsBackendsThatWouldRun) {
  const PickyBackend picky;
  const AttentionBackend* const table[] = {&picky};
  AttentionProblem problem = SmallProblem();
  problem.d = 64;
  const auto choice = SelectBackend(BackendRequest{"NAIVE"}, problem, table);
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(choice.status().message()),
              HasSubstr("not part of this build; would run: PICKY"));
}

TEST(SelectBackend, AutoSaysWhyEarlierBackendsAreRefused) {
  const PickyBackend picky;
  const AttentionBackend* const table[] = {&picky, Naive()};
  const auto choice =
      SelectBackend(BackendRequest{"AUTO"}, SmallProblem(), table);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->backend, Naive());
  EXPECT_EQ(choice->reason,
            "AUTO chose NAIVE; not PICKY (head dim must be a multiple of 64)");
}

TEST(SelectBackend, AutoGroupsEqualRefusals) {
  const PickyBackend picky;
  const AttentionBackend* const table[] = {&picky, &picky, Naive()};
  const auto choice =
      SelectBackend(BackendRequest{"AUTO"}, SmallProblem(), table);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->reason,
            "AUTO chose NAIVE; not PICKY, PICKY (head dim must be a multiple "
            "of 64)");
}

TEST(SelectBackend, AutoTakesTheFirst) {
  const PickyBackend picky;
  const AttentionBackend* const table[] = {&picky, Naive()};
  AttentionProblem problem = SmallProblem();
  problem.d = 64;
  const auto choice = SelectBackend(BackendRequest{"AUTO"}, problem, table);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->backend, &picky);
}

TEST(SelectBackend, AutoCapsScoresInFlashCudaOnAGpu) {
  AttentionProblem problem = SmallProblem();
  problem.soft_cap = 50;
  const auto name = [&] {
    const auto choice = SelectBackend(BackendRequest{"AUTO"}, problem);
    EXPECT_TRUE(choice.ok()) << choice.status();
    return choice.ok() ? choice->backend->name() : "";
  };
  EXPECT_EQ(name(), "NAIVE");
  problem.cuda = true;
  for (const int compute_capability : {80, 90}) {
    problem.compute_capability = compute_capability;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      problem.dtype = dtype;
      EXPECT_EQ(name(), "FLASH_CUDA");
    }
  }
}

TEST(SelectBackend, ARefusedSoftCapNamesTheBackendsThatHaveIt) {
  AttentionProblem problem = SmallProblem();
  problem.soft_cap = 50;
  const auto choice = SelectBackend(BackendRequest{"COMPILED_FUSED"}, problem);
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(choice.status().message()),
              HasSubstr("has no soft cap of scores: use FLASH_CUDA, "
                        "FLASH_TILED or NAIVE, or no "
                        "model.attention_soft_cap"));
}

TEST(SelectBackend, DeterministicProblemRefusesAtomics) {
  const PickyBackend picky;
  const AttentionBackend* const table[] = {&picky, Naive()};
  AttentionProblem problem = SmallProblem();
  problem.d = 64;
  problem.deterministic = true;
  const auto choice = SelectBackend(BackendRequest{"AUTO"}, problem, table);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->backend, Naive());
  EXPECT_THAT(choice->reason, HasSubstr("adds dQ in no fixed order"));
}

TEST(SelectBackend, AutoListsEveryReasonIfNoBackendRuns) {
  const PickyBackend picky;
  const AttentionBackend* const table[] = {&picky};
  const auto choice =
      SelectBackend(BackendRequest{"AUTO"}, SmallProblem(), table);
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(choice.status().message()),
              HasSubstr("PICKY (head dim must be a multiple of 64)"));
}

TEST(SelectBackend, RefusesMalformedProblems) {
  AttentionProblem problem = SmallProblem();
  problem.g = 3;
  auto choice = SelectBackend(BackendRequest(), problem);
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(choice.status().message()), HasSubstr("4 and 3"));
  problem.g = 0;
  choice = SelectBackend(BackendRequest(), problem);
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kInvalidArgument);
  choice = SelectBackend(BackendRequest{"NAVE"}, SmallProblem());
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(choice.status().message()), HasSubstr("NAIVE"));
}

}  // namespace
}  // namespace tessera
