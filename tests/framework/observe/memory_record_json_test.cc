#include "framework/observe/memory_record_json.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(MemoryRecordJsonTest, HasEveryField) {
  MemoryRecord record{.step = 10};
  record.phases = {
      {.phase = "forward", .allocated = 30, .peak = 40, .reserved = 50}};
  record.peak = {.allocated = 100,
                 .reserved = 128,
                 .bytes = {1, 2, 3, 4, 50, 6, 7, 8, 9},
                 .activations = {{"block_0", {{"ffn/w2", 50}}}}};
  record.peak_in = "backward/loss";
  record.end = {.allocated = 1, .reserved = 128, .bytes = {1}};
  record.saved = {{"block_0", {{"ffn/w2", 20}, {"ffn/w13", 30}}}};
  record.largest = {{.bytes = 50,
                     .category = MemoryCategory::kActivations,
                     .from = "forward/block_0/ffn/w2",
                     .to = "",
                     .ms = 0}};
  record.outside = 70;
  nlohmann::ordered_json json = ToJson(record);
  EXPECT_EQ(json["step"], 10);
  EXPECT_EQ(json["phases"].dump(),
            R"({"forward":{"allocated":30,"peak":40,"reserved":50}})");
  EXPECT_EQ(json["peak"].dump(),
            R"({"in":"backward/loss","allocated":100,"reserved":128,)"
            R"("parameters":1,"shadow":2,"gradients":3,"optimizer":4,)"
            R"("activations":50,"activation_gradients":6,"workspace":7,)"
            R"("communication":8,"other":9,"slack":10,"fragmentation":28,)"
            R"("activations_of":{"block_0":{"ffn/w2":50}}})");
  EXPECT_EQ(json["end"]["fragmentation"], 127);
  EXPECT_EQ(json["saved"].dump(),
            R"({"bytes":50,"of":{"block_0":{"ffn/w2":20,"ffn/w13":30}}})");
  EXPECT_EQ(json["largest"].dump(),
            R"([{"bytes":50,"category":"activations",)"
            R"("from":"forward/block_0/ffn/w2","to":"",)"
            R"("at_ms":0.0,"ms":0.0}])");
  EXPECT_EQ(json["outside"], 70);
  EXPECT_FALSE(json.contains("timeline"));

  record.timeline.points = {{.us = 7, .bytes = {1, 2}}};
  json = ToJson(record);
  EXPECT_EQ(json["timeline"]["columns"].size(), 10u);
  EXPECT_EQ(json["timeline"]["columns"][1], "parameters");
  EXPECT_EQ(json["timeline"]["points"].dump(), "[[7,1,2,0,0,0,0,0,0,0]]");
}

}  // namespace
}  // namespace tessera
