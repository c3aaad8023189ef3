#include "framework/ops/linear/product_table.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// A file in a folder that does not exist yet.
std::string NewPath(const std::string& test) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/", test);
  EXPECT_TRUE(RemoveTree(folder).ok());
  return folder + "/a GPU, 13.json";
}

TEST(ProductTableTest, KeepsChoicesForLaterProcesses) {
  const std::string path = NewPath("keeps");
  ProductTable first("a GPU, 13", path);
  EXPECT_EQ(first.Find("A"), std::nullopt);
  EXPECT_EQ(first.Add("A", "01"), "01");
  EXPECT_EQ(first.Add("B", "02"), "02");
  EXPECT_EQ(first.Find("A"), "01");
  const ProductTable second("a GPU, 13", path);
  EXPECT_EQ(second.Find("A"), "01");
  EXPECT_EQ(second.Find("B"), "02");
}

TEST(ProductTableTest, OfTwoProcessesTheFirstWins) {
  const std::string path = NewPath("first_wins");
  ProductTable one("a GPU, 13", path), other("a GPU, 13", path);
  EXPECT_EQ(one.Add("A", "01"), "01");
  EXPECT_EQ(other.Add("A", "02"), "01");
  EXPECT_EQ(other.Add("B", "03"), "03");
  EXPECT_EQ(one.Add("C", "04"), "04");
  const ProductTable later("a GPU, 13", path);
  for (const auto& [kind, algorithm] :
       {std::pair{"A", "01"}, {"B", "03"}, {"C", "04"}}) {
    EXPECT_EQ(later.Find(kind), algorithm);
  }
}

TEST(ProductTableTest, IgnoresWhatIsDamagedOrOfAnotherMachine) {
  const std::string path = NewPath("damaged");
  ASSERT_TRUE(MakeDirectories(path.substr(0, path.rfind('/'))).ok());
  for (const std::string text :
       {"", "{", "[1]", R"({"machine": "a GPU, 13"})",
        R"({"machine": "a GPU, 13", "algorithms": {"A": 1}})",
        R"({"machine": "a GPU, 12", "algorithms": {"A": "01"}})"}) {
    ASSERT_TRUE(WriteFileAtomically(path, text).ok());
    ProductTable table("a GPU, 13", path);
    EXPECT_EQ(table.Find("A"), std::nullopt) << text;
    EXPECT_EQ(table.Add("A", "02"), "02") << text;
    EXPECT_EQ(ProductTable("a GPU, 13", path).Find("A"), "02") << text;
  }
}

TEST(ProductTableTest, PrefersACheckpoint) {
  const std::string path = NewPath("prefers");
  ProductTable table("a GPU, 13", path);
  table.Add("A", "01");
  table.Prefer(Json{{"machine", "another"}, {"algorithms", {{"A", "03"}}}});
  EXPECT_EQ(table.Find("A"), "01");
  table.Prefer(Json{{"machine", "a GPU, 13"}, {"algorithms", {{"A", "02"}}}});
  EXPECT_EQ(table.Find("A"), "02");
  table.Prefer(nullptr);
  EXPECT_EQ(table.Find("A"), "02");
  EXPECT_EQ(ProductTable("a GPU, 13", path).Find("A"), "01");
}

TEST(ProductTableTest, WorksWithoutAFile) {
  for (const std::string path : {"", "/dev/null/products/a.json"}) {
    ProductTable table("a GPU, 13", path);
    EXPECT_EQ(table.Add("A", "01"), "01");
    EXPECT_EQ(table.Find("A"), "01");
  }
}

}  // namespace
}  // namespace tessera
