#include "trainers/run/non_finite_diagnosis.h"

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"

namespace tessera {
namespace {

constexpr int64_t kBatch = 4;  // sequences per step of the toy

TEST(NonFiniteDiagnosisTest, FiniteStepsPass) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  Train(*session, 2);
  const absl::Status status = CheckFinite(*session, 2, 2 * kBatch);
  EXPECT_TRUE(status.ok()) << status;
}

bool HasToken(Session& session, int64_t step, int64_t token) {
  const Batch batch = session.train_loader().Load(step * kBatch).value();
  return batch.ids_mbs.eq(token).any().item<bool>();
}

// A token that occurs only in step `step` of the first five.
int64_t TokenOfStep(Session& session, int64_t step) {
  for (int64_t token = 0; token < session.plan().shape.vocab; ++token) {
    int64_t readers = 0;
    for (int64_t s = 0; s < 5; ++s) readers += HasToken(session, s, token);
    if (readers == 1 && HasToken(session, step, token)) return token;
  }
  ADD_FAILURE() << "no such token";
  return 0;
}

TEST(NonFiniteDiagnosisTest, RepeatsTheFirstBadStepLongAfterIt) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  Train(*session, 2);
  // Only the batch of the third step gives a loss that is not finite.
  const int64_t token = TokenOfStep(*session, 2);
  session->state()
      .parameters->Get("token_embeddings.weight")
      .As(at::kFloat)[token]
      .fill_(NAN);
  Train(*session, session->step(), 2, 3);
  const absl::Status status = CheckFinite(*session, 5, 5 * kBatch);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(
      std::string(status.message()),
      testing::StartsWith(
          "step 3 gave a gradient that is not finite (loss nan, first "
          "in token_embeddings.weight); no weight was updated with it"));
}

}  // namespace
}  // namespace tessera
