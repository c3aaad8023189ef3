#include "framework/observe/trace/op_place.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/framework/observe/trace/trace_builder.h"

namespace tessera::testing {
namespace {

using Level = HostRange::Level;

TEST(OpPlaceTest, SaysWhatAProgramsRowsSay) {
  TraceBuilder b;
  const int step = b.Step("step_7", 0, 100);
  const int forward = b.Range(Level::kPhase, "forward", step, 0, 10);
  const int embedding = b.Range(Level::kOp, "token_embeddings", forward, 1, 2);
  const int backward = b.Range(Level::kPhase, "backward", step, 10, 90);
  const int recompute = b.Range(Level::kPhase, "recompute", backward, 20, 60);
  const int block = b.Range(Level::kPhase, "block_3", recompute, 20, 60);
  const int attention = b.Range(Level::kPhase, "attention", block, 20, 60);
  const int op = b.Range(Level::kOp, "sdpa", attention, 30, 50);
  const int softmax = b.Range(Level::kPhase, "softmax", op, 35, 40);
  const int evaluation = b.Range(Level::kPhase, "evaluation", -1, 100, 200);
  const std::vector<OpPlace> places = PlacesOf(b.trace());

  const OpPlace& place = places[softmax];
  EXPECT_EQ(place.phase, "recompute");
  EXPECT_EQ(place.group, "block_3/attention");
  EXPECT_EQ(place.op, "sdpa");
  EXPECT_EQ(place.part, "softmax");
  EXPECT_EQ(place.step, step);
  EXPECT_EQ(place.block(), "block_3");

  EXPECT_EQ(places[op].part, "");
  EXPECT_EQ(places[backward].phase, "backward");
  EXPECT_EQ(places[embedding].phase, "forward");
  EXPECT_EQ(places[embedding].group, "");
  EXPECT_EQ(places[embedding].op, "token_embeddings");
  EXPECT_EQ(places[embedding].block(), "outside");
  EXPECT_EQ(places[step].phase, "outside");
  EXPECT_EQ(places[step].step, step);
  EXPECT_EQ(places[evaluation].phase, "evaluation");
  EXPECT_EQ(places[evaluation].step, -1);
}

}  // namespace
}  // namespace tessera::testing
