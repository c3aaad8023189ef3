#include "framework/base/text_proto.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "tests/framework/base/kitchen.pb.h"

namespace tessera {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::tessera::testing::Kitchen;
using ::testing::HasSubstr;
using ::testing::Not;

struct BadText {
  std::string text;
  std::string error;
};

class BadTextTest : public ::testing::TestWithParam<BadText> {};

TEST_P(BadTextTest, ErrorSaysWhereAndWhat) {
  Kitchen kitchen;
  kitchen.set_motto("untouched");
  const absl::Status status =
      MergeTextProto(GetParam().text, "k.pbtxt", &kitchen).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), GetParam().error);
  EXPECT_EQ(kitchen.ShortDebugString(), "motto: \"untouched\"");
}

INSTANTIATE_TEST_SUITE_P(
    All, BadTextTest,
    ::testing::Values(
        BadText{"oven {\n  temprature: 200\n}",
                "k.pbtxt:2:3: Oven has no field 'temprature'; did you mean "
                "'temperature'?"},
        BadText{"Motto: 'x'",
                "k.pbtxt:1:1: Kitchen has no field 'Motto'; did you mean "
                "'motto'?"},
        BadText{"wood { quantity: 2 }",
                "k.pbtxt:1:8: Wood has no field 'quantity'; it has logs"},
        BadText{"sald: 1\noven { trais: 2 }",
                "k.pbtxt:1:1: Kitchen has no field 'sald'; did you mean "
                "'salt'?\n"
                "k.pbtxt:2:8: Oven has no field 'trais'; did you mean "
                "'trays'?"},
        BadText{"oven { mode: BOIL }",
                "k.pbtxt:1:14: 'BOIL' is not a value of mode; it takes one of "
                "GRILL, STEAM"},
        BadText{"\n  knives: -1", "k.pbtxt:2:11: expected integer, got: -"},
        BadText{"oven { trays: 1 }\nknives: 2\nknives: 3",
                "k.pbtxt:3:7: non-repeated field \"knives\" is specified "
                "multiple times."}));

TEST(TextProtoTest, MergesAndKnowsTheLocationsOfFields) {
  Kitchen kitchen;
  kitchen.set_motto("kept");
  const auto locations = MergeTextProto(
      "# a comment\n"
      "dishes { name: 'soup' }\n"
      "dishes {\n"
      "  name: 'bread' portions: 2\n"
      "}\n"
      "  oven { trays: 3 }",
      "k.pbtxt", &kitchen);
  ASSERT_TRUE(locations.ok()) << locations.status();
  EXPECT_EQ(kitchen.motto(), "kept");
  EXPECT_EQ(kitchen.dishes(1).portions(), 2);

  EXPECT_EQ(locations->Describe("oven.trays"), "k.pbtxt:6:10");
  EXPECT_EQ(locations->Describe("dishes[0].name"), "k.pbtxt:2:10");
  EXPECT_EQ(locations->Describe("dishes[1].portions"), "k.pbtxt:4:17");
  EXPECT_TRUE(locations->Has("dishes[1].portions"));
  // For a field that is not set: the enclosing message, or else the file.
  EXPECT_FALSE(locations->Has("oven.mode"));
  EXPECT_EQ(locations->Describe("oven.mode"), "k.pbtxt:6:3");
  EXPECT_TRUE(locations->IsDefault("oven.mode"));
  EXPECT_FALSE(locations->IsDefault("oven.trays"));
  EXPECT_EQ(locations->Describe("gas.flow"), "k.pbtxt");
  EXPECT_TRUE(locations->IsDefault("gas.flow"));
  EXPECT_FALSE(locations->IsDefault("budget_cents"));
  EXPECT_EQ(locations->Describe("no.such.field"), "k.pbtxt");
}

// Texts merged in order, with their numbers as names: "1", "2", ...
struct Merged {
  explicit Merged(const std::vector<std::string>& texts)
      : locations(*Kitchen::descriptor()) {
    for (const std::string& text : texts) {
      auto of_text = MergeTextProto(text, absl::StrCat(++count), &kitchen);
      EXPECT_TRUE(of_text.ok()) << of_text.status();
      locations.Add(*std::move(of_text));
    }
  }
  int count = 0;
  Kitchen kitchen;
  TextProtoLocations locations;
};

TEST(MergedTextProtosTest, FieldsAreLocatedWhereTheyAreSetLast) {
  const Merged merged({"oven {\n trays: 1 mode: STEAM }", "oven { trays: 2 }",
                       "motto: 'fast'"});
  EXPECT_EQ(merged.kitchen.ShortDebugString(),
            "oven { mode: STEAM trays: 2 } motto: \"fast\"");
  EXPECT_EQ(merged.locations.Describe("oven.trays"), "2:1:8");
  EXPECT_EQ(merged.locations.Describe("oven.mode"), "1:2:11");
  EXPECT_EQ(merged.locations.Describe("oven.temperature"), "2:1:1");
  EXPECT_EQ(merged.locations.Describe("salt"), "1 + 2 + 3");
  EXPECT_EQ(Merged({}).locations.Describe("salt"), "defaults");
}

TEST(MergedTextProtosTest, AListReplacesTheWholeList) {
  const std::string base =
      "guests: 'a' guests: 'b'\ndishes { name: 'soup' portions: 9 } seats: 1";
  const Merged merged({base, "dishes { name: 'bread' } guests: ['c', 'd', 'e']",
                       "seats: [] knives: 3"});
  EXPECT_EQ(merged.kitchen.ShortDebugString(),
            "dishes { name: \"bread\" } guests: \"c\" guests: \"d\" "
            "guests: \"e\" knives: 3");
  EXPECT_EQ(merged.locations.Describe("dishes[0].name"), "2:1:10");
  // Not the location in the replaced list.
  EXPECT_EQ(merged.locations.Describe("dishes[0].portions"), "2:1:1");
  EXPECT_FALSE(merged.locations.Has("dishes[0].portions"));
  // All elements of a list in brackets have the same location.
  EXPECT_EQ(merged.locations.Describe("guests[2]"), "2:1:26");
}

TEST(MergedTextProtosTest, ACaseOfAOneofReplacesAnother) {
  const Merged merged({"gas { flow: 2 }", "wood { logs: 5 }", "wood {}"});
  EXPECT_EQ(merged.kitchen.ShortDebugString(), "wood { logs: 5 }");
  EXPECT_EQ(merged.locations.Describe("wood.logs"), "2:1:8");
  EXPECT_FALSE(merged.locations.Has("gas.flow"));
  const Merged back({"gas { flow: 2 }", "wood {}", "gas {}"});
  EXPECT_EQ(back.kitchen.ShortDebugString(), "gas { }");
  EXPECT_EQ(back.locations.Describe("gas.flow"), "3:1:1");
}

TEST(TextProtoTest, TruncatedTextIsReadOrRejectedWithALocation) {
  const std::string text =
      "oven { mode: STEAM temperature: -1.5e2 } guests: ['a', \"b\"]\n"
      "unknown { x: [1, 2] y: 'z' } wood: < logs: 0x1F >\n";
  for (size_t size = 0; size <= text.size(); ++size) {
    Kitchen kitchen;
    const absl::Status status =
        MergeTextProto(text.substr(0, size), "k.pbtxt", &kitchen).status();
    EXPECT_TRUE(status.ok() || absl::StartsWith(status.message(), "k.pbtxt:"))
        << size << ": " << status;
  }
}

TEST(TextProtoTest, RejectsEndlessNesting) {
  std::string text;
  for (int i = 0; i < 1000000; ++i) text += "a{";
  Kitchen kitchen;
  EXPECT_THAT(
      std::string(MergeTextProto(text, "k.pbtxt", &kitchen).status().message()),
      HasSubstr("too deep"));
}

TEST(TextProtoTest, ReadsFilesAndNamesThemInErrors) {
  const std::string path = ::testing::TempDir() + "/kitchen.pbtxt";
  ASSERT_TRUE(WriteFileAtomically(path, "open: perhaps").ok());
  Kitchen kitchen;
  EXPECT_THAT(std::string(ReadTextProto(path, &kitchen).status().message()),
              HasSubstr(path + ":1:"));
  ASSERT_TRUE(WriteFileAtomically(path, "open: false").ok());
  EXPECT_TRUE(ReadTextProto(path, &kitchen).ok());
  EXPECT_FALSE(kitchen.open());
  EXPECT_EQ(ReadTextProto(path + ".no", &kitchen).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(PrintWithDefaultsTest, WritesDefaultsAndOnlyTheCaseThatIsSet) {
  Kitchen kitchen;
  kitchen.mutable_wood();
  kitchen.add_dishes()->set_name("soup");
  kitchen.add_seats(2);
  kitchen.add_seats(4);
  const std::string text = PrintWithDefaults(kitchen);
  EXPECT_THAT(text, HasSubstr("temperature: 180"));
  EXPECT_THAT(text, HasSubstr("mode: GRILL"));
  EXPECT_THAT(text, HasSubstr("motto: \"slow\""));
  EXPECT_THAT(text, HasSubstr("salt: 0.5"));
  EXPECT_THAT(text, HasSubstr("portions: 4"));
  EXPECT_THAT(text, HasSubstr("logs: 3"));
  EXPECT_THAT(text, HasSubstr("seats: [2, 4]"));
  EXPECT_THAT(text, Not(HasSubstr("gas")));
  // No default in the schema, so absent stays absent.
  EXPECT_THAT(text, Not(HasSubstr("budget_cents")));
}

TEST(MergeTextProtoTest, SkipsTheByteOrderMarkOfUtf8) {
  const std::string mark = "\xEF\xBB\xBF";
  Kitchen kitchen;
  const auto found = MergeTextProto(mark + "motto: 'x'", "k.pbtxt", &kitchen);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(kitchen.motto(), "x");
  EXPECT_EQ(found->Describe("motto"), "k.pbtxt:1:1");
  const absl::Status status =
      MergeTextProto(mark + "open: true moto: 'x'", "k.pbtxt", &kitchen)
          .status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("k.pbtxt:1:12: Kitchen has no field 'moto'"));
}

TEST(MergeTextProtoTest, NamesAnEncodingThatIsNotUtf8) {
  struct Case {
    std::string text;
    const char* encoding;
  };
  using std::string_literals::operator""s;
  for (const auto& [text, encoding] : {Case{"\xFF\xFEo\0v\0"s, "UTF-16"},
                                       {"\xFE\xFF\0o\0v"s, "UTF-16"},
                                       {"\xFF\xFE\0\0o\0\0\0"s, "UTF-32"},
                                       {"\0\0\xFE\xFF\0\0\0o"s, "UTF-32"},
                                       // Without a byte order mark.
                                       {"o\0v\0"s, "UTF-16"},
                                       {"\0o\0v"s, "UTF-16"},
                                       {"o\0\0\0"s, "UTF-32"},
                                       {"\0\0\0o"s, "UTF-32"}}) {
    Kitchen kitchen;
    const absl::Status status =
        MergeTextProto(text, "k.pbtxt", &kitchen).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              absl::StrCat("k.pbtxt is ", encoding,
                           ", but a config must be UTF-8; save it as UTF-8"));
  }
}

TEST(MergeTextProtoTest, NamesAByteThatIsNotPartOfTheSyntax) {
  Kitchen kitchen;
  // A no-break space, as copied from a web page.
  const absl::Status status =
      MergeTextProto("open:\xC2\xA0true", "k.pbtxt", &kitchen).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("k.pbtxt:1:6: byte 0xC2 is not allowed outside "
                        "of \"text\" and # comments"));
  EXPECT_TRUE(
      MergeTextProto("# na\u00efve\nmotto: 'na\u00efve'", "k.pbtxt", &kitchen)
          .ok());
}

TEST(MergeTextProtoTest, ErrorsShortenLongValues) {
  const std::string much(10000, 'x');
  for (const std::string& text :
       {much + ": 1", "oven { mode: " + much + " }",
        "oven { trays: " + much + " }", "open: " + much, "motto: " + much}) {
    Kitchen kitchen;
    const absl::Status status =
        MergeTextProto(text, "k.pbtxt", &kitchen).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("xxx ... "));
    EXPECT_LT(status.message().size(), 700u);
  }
}

TEST(PrintWithDefaultsTest, IsAFixedPoint) {
  Kitchen kitchen;
  kitchen.mutable_gas()->set_flow(0.1);
  kitchen.set_motto("\"naïve\"\n");
  const std::string text = PrintWithDefaults(kitchen);
  Kitchen parsed;
  ASSERT_TRUE(MergeTextProto(text, "printed", &parsed).ok());
  EXPECT_EQ(parsed.gas().flow(), 0.1);
  EXPECT_EQ(parsed.motto(), kitchen.motto());
  EXPECT_EQ(PrintWithDefaults(parsed), text);
  EXPECT_TRUE(MessageDifferencer::Equivalent(parsed.gas(), kitchen.gas()));
}

}  // namespace
}  // namespace tessera
