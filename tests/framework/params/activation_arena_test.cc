#include "framework/params/activation_arena.h"

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ArenaCursorTest, TakesOnlyWhatEndsBeforeTheReachedGradient) {
  ArenaCursor cursor(/*begin=*/0);
  EXPECT_EQ(cursor.Take(4), std::nullopt);  // nothing reached yet
  cursor.Reach(1000);
  EXPECT_EQ(cursor.Take(4), 0);
  EXPECT_EQ(cursor.Take(800), std::nullopt);  // 256 + 800 > 1000
  EXPECT_EQ(cursor.Take(744), 256);
  cursor.Reach(500);  // a parameter read again does not shrink it
  cursor.Reach(1100);
  EXPECT_EQ(cursor.Take(76), 1024);
  EXPECT_EQ(cursor.Take(1), std::nullopt);
}

TEST(ArenaCursorTest, LeavesTheFrontAlone) {
  ArenaCursor cursor(/*begin=*/300);
  cursor.Reach(300);
  EXPECT_EQ(cursor.Take(1), std::nullopt);
  cursor.Reach(513);
  EXPECT_EQ(cursor.Take(1), 512);
}

std::unique_ptr<ParameterStore> Store(bool frozen_embedding = false) {
  const std::vector<ParameterBlockSpec> blocks = {
      {"embedding",
       {{"embedding", {50, 8}, Init::kEmbedding}},
       !frozen_embedding},
      {"up", {{"up", {30, 8}, Init::kLinear}}},
      {"down", {{"down", {8, 30}, Init::kLinear}}}};
  return ParameterStore::Create(blocks, {}).value();
}

bool LiesIn(const at::Tensor& tensor, const at::Tensor& buffer) {
  const char* begin = static_cast<const char*>(buffer.const_data_ptr());
  const char* data = static_cast<const char*>(tensor.const_data_ptr());
  return data >= begin && data + tensor.nbytes() <= begin + buffer.nbytes();
}

TEST(ActivationArenaTest, TensorsLieInTheBufferAndDoNotOverlap) {
  const auto store = Store();
  ActivationArena arena(*store, nullptr);
  const ActivationArenaScope scope(&arena);
  ReachParameter(store->Get("embedding"));
  const at::Tensor a = EmptyActivation({7, 9}, at::kFloat);
  const at::Tensor b = EmptyActivation({3, 3}, at::kBFloat16);
  EXPECT_TRUE(LiesIn(a, store->grad()));
  EXPECT_TRUE(LiesIn(b, store->grad()));
  EXPECT_EQ(b.scalar_type(), at::kBFloat16);
  a.fill_(1);
  b.fill_(2);
  EXPECT_TRUE(a.eq(1).all().item<bool>());
  const at::Tensor large = EmptyActivation({400}, at::kFloat);
  EXPECT_FALSE(LiesIn(large, store->grad()));
}

// Autograd must not mistake a written gradient for a changed saved tensor.
TEST(ActivationArenaTest, TensorsHaveTheirOwnVersionCounter) {
  const auto store = Store();
  ActivationArena arena(*store, nullptr);
  const ActivationArenaScope scope(&arena);
  ReachParameter(store->Get("embedding"));
  const at::Tensor a = EmptyActivation({4}, at::kFloat);
  const auto before = a._version();
  at::Tensor grad = store->Get("embedding").grad();
  grad.zero_();
  EXPECT_EQ(a._version(), before);
}

TEST(ActivationArenaTest, FrozenParametersLendNothing) {
  const auto store = Store(/*frozen_embedding=*/true);
  ActivationArena arena(*store, nullptr);
  const ActivationArenaScope scope(&arena);
  ReachParameter(store->Get("embedding"));
  EXPECT_FALSE(LiesIn(EmptyActivation({4}, at::kFloat), store->grad()));
}

TEST(ActivationArenaTest, GradientThatBackwardWritesFirstIsSpared) {
  const auto store = Store();
  Parameter& embedding = store->Get("embedding");
  ActivationArena arena(*store, &embedding);
  const ActivationArenaScope scope(&arena);
  ReachParameter(embedding);
  EXPECT_FALSE(LiesIn(EmptyActivation({4}, at::kFloat), store->grad()));
  ReachParameter(store->Get("up"));
  const at::Tensor a = EmptyActivation({4}, at::kFloat);
  EXPECT_TRUE(LiesIn(a, store->grad()));
  EXPECT_GE(
      a.const_data_ptr<float>(),
      embedding.grad().const_data_ptr<float>() + embedding.grad().numel());
}

TEST(ActivationArenaTest, ScopesNestAndEnd) {
  const auto store = Store();
  ActivationArena arena(*store, nullptr);
  {
    const ActivationArenaScope scope(&arena);
    ReachParameter(store->Get("down"));
    {
      const ActivationArenaScope none(nullptr);
      EXPECT_FALSE(LiesIn(EmptyActivation({4}, at::kFloat), store->grad()));
    }
    EXPECT_TRUE(LiesIn(EmptyActivation({4}, at::kFloat), store->grad()));
  }
  EXPECT_FALSE(LiesIn(EmptyActivation({4}, at::kFloat), store->grad()));
}

// The optimizer and the norm run over the whole flat buffer.
TEST(ActivationArenaTest, GapsAreZeroAgainAfterBackward) {
  const auto store = Store();  // 400, 240 and 240 elements
  store->grad().fill_(7);
  store->BeginGradients();
  for (const char* name : {"embedding", "up", "down"}) {
    Parameter& parameter = store->Get(name);
    parameter.ClaimFirstGradWrite();
    at::Tensor grad = parameter.grad();
    grad.fill_(1);
  }
  store->ZeroUnwrittenGradients();
  EXPECT_EQ(store->grad().sum().item<double>(), 400 + 240 + 240);
}

}  // namespace
}  // namespace tessera
