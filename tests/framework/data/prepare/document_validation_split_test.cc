#include "framework/data/prepare/document_validation_split.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/data/prepare/corpus.h"
#include "framework/data/read/permutation.h"
#include "gtest/gtest.h"
#include "tests/framework/data/data_test_util.h"
#include "tests/framework/data/prepare/part_texts.h"

namespace tessera {
namespace {

using ::absl::StatusCode;
using testing::CppText;
using ::testing::ElementsAre;
using testing::Fails;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::PartTexts;
using testing::TestPath;
using testing::Write;

// The corpus of `files`, with `fraction` of it held out.
absl::StatusOr<Corpus> ScanAndHoldOut(const std::vector<std::string>& files,
                                      double fraction, uint64_t seed = 0) {
  absl::StatusOr<Corpus> corpus = Corpus::Scan(files, {.separator = "<E>"});
  if (!corpus.ok()) return corpus;
  const absl::Status held_out = HoldOutDocuments(fraction, seed, &*corpus);
  if (!held_out.ok()) return held_out;
  return corpus;
}

TEST(DocumentValidationSplitTest, HoldsOutTheRequestedFraction) {
  std::string text;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&text, i, "<E>");
  const std::string path = TestPath("a.txt");
  Write(path, text);
  const auto held_out = [&](double fraction, uint64_t seed) {
    const auto corpus = ScanAndHoldOut({path}, fraction, seed);
    EXPECT_THAT(corpus, IsOk());
    std::set<int64_t> places;
    for (const Corpus::Part& part : corpus->parts()) {
      if (part.is_validation) places.insert(part.begin);
    }
    return places;
  };
  EXPECT_EQ(held_out(0, 1).size(), 0u);
  EXPECT_EQ(held_out(1e-6, 1).size(), 1u);
  EXPECT_EQ(held_out(0.1, 1).size(), 100u);
  EXPECT_EQ(held_out(0.1, 1), held_out(0.1, 1));
  EXPECT_NE(held_out(0.1, 1), held_out(0.1, 2));
}

TEST(DocumentValidationSplitTest, HoldsOutTheTailOfASingleDocument) {
  const auto halves = [](const std::string& text, double fraction) {
    Write(TestPath("a.txt"), text);
    Write(TestPath("empty.txt"), "");
    const auto corpus =
        ScanAndHoldOut({TestPath("empty.txt"), TestPath("a.txt")}, fraction);
    EXPECT_THAT(corpus, IsOk());
    for (const Corpus::Part& part : corpus->parts()) {
      EXPECT_EQ(part.is_validation, &part == &corpus->parts().back());
      EXPECT_TRUE(part.ends_document);
    }
    return PartTexts(*corpus);
  };
  // 2 of 19 bytes requested; a line begins one byte earlier.
  EXPECT_THAT(halves("one\ntwo\nthree\nf\nab\n", 0.15),
              ElementsAre("one\ntwo\nthree\nf\n", "ab\n"));
  // 4 of 10 bytes requested; a line begins two bytes later.
  EXPECT_THAT(halves("0123456\n89<E>", 0.4), ElementsAre("0123456\n", "89"));
  // No line nearby: the requested number of bytes, in whole characters.
  EXPECT_THAT(halves("0\n12345678", 0.2), ElementsAre("0\n123456", "78"));
  EXPECT_THAT(halves("0123漢漢漢", 0.2), ElementsAre("0123漢漢", "漢"));
  EXPECT_THAT(halves("ab", 0.5), ElementsAre("a", "b"));
}

// The number of bytes held out of files of these sizes. Checks that all bytes
// stay in place.
int64_t HeldOutBytes(const std::vector<int>& file_bytes, double fraction,
                     uint64_t seed) {
  static const std::string text = CppText(20000, 9);
  std::vector<std::string> files;
  std::string joined;
  for (size_t i = 0; i < file_bytes.size(); ++i) {
    files.push_back(TestPath(absl::StrCat(i, ".txt")));
    Write(files.back(), text.substr(i, file_bytes[i]));
    joined += text.substr(i, file_bytes[i]);
  }
  const auto corpus = ScanAndHoldOut(files, fraction, seed);
  EXPECT_THAT(corpus, IsOk());
  int64_t held_out = 0;
  for (const Corpus::Part& part : corpus->parts()) {
    held_out += part.is_validation ? part.bytes : 0;
  }
  EXPECT_EQ(absl::StrJoin(PartTexts(*corpus), ""), joined);
  return held_out;
}

TEST(DocumentValidationSplitTest, HoldsOutBytesHoweverUnequalThePartsAre) {
  // The first two are single documents of two and six parts; in the last one,
  // each of ten documents has more than a hundredth of the text.
  const std::vector<int> cases[] = {{70000},
                                    {355000},
                                    {38000, 1000},
                                    {200000, 20, 20, 20},
                                    std::vector<int>(300, 1000),
                                    std::vector<int>(10, 10000)};
  for (const std::vector<int>& file_bytes : cases) {
    const double all =
        std::accumulate(file_bytes.begin(), file_bytes.end(), 0.0);
    for (const double fraction : {0.01, 0.1, 0.5}) {
      for (uint64_t seed = 0; seed < 10; ++seed) {
        SCOPED_TRACE(absl::StrCat(file_bytes.size(), " files, ", all,
                                  " bytes, seed ", seed));
        const int64_t held_out = HeldOutBytes(file_bytes, fraction, seed);
        EXPECT_GE(held_out, fraction * all / 2 - 1);
        EXPECT_LE(held_out, fraction * all * 2);
        EXPECT_LT(held_out, all);
      }
    }
  }
}

// Also one whose parts are on both sides: neither runs into another document.
TEST(DocumentValidationSplitTest, EveryDocumentEndsOnItsSide) {
  std::vector<std::string> files;
  for (int file = 0; file < 6; ++file) {
    files.push_back(TestPath(absl::StrCat("long_", file, ".txt")));
    Write(files.back(), CppText(8000, file));  // several parts
  }
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const auto corpus = ScanAndHoldOut(files, 0.2, seed);
    ASSERT_THAT(corpus, IsOk());
    const std::vector<Corpus::Part>& parts = corpus->parts();
    ASSERT_GT(parts.size(), 12u);
    EXPECT_TRUE(parts.back().ends_document);
    for (size_t i = 1; i < parts.size(); ++i) {
      if (parts[i].is_validation != parts[i - 1].is_validation) {
        EXPECT_TRUE(parts[i - 1].ends_document) << seed << ", part " << i;
      }
    }
  }
}

TEST(DocumentValidationSplitTest, HoldsOutTheLastPartsOfASingleDocument) {
  Write(TestPath("a.txt"), CppText(10000, 1));
  const auto corpus = ScanAndHoldOut({TestPath("a.txt")}, 0.3);
  ASSERT_THAT(corpus, IsOk());
  EXPECT_GT(corpus->parts().size(), 4u);
  int changes = 0;
  for (size_t i = 1; i < corpus->parts().size(); ++i) {
    const Corpus::Part& before = corpus->parts()[i - 1];
    const Corpus::Part& part = corpus->parts()[i];
    const bool is_cut = before.is_validation != part.is_validation;
    EXPECT_EQ(before.ends_document, is_cut);
    changes += is_cut ? 1 : 0;
  }
  EXPECT_EQ(changes, 1);
  EXPECT_TRUE(corpus->parts().back().is_validation);
  EXPECT_TRUE(corpus->parts().back().ends_document);
}

// Existing prepared texts depend on this.
TEST(DocumentValidationSplitTest, WithManyPartsTheHashDecides) {
  std::string text;
  for (int i = 0; i < 2000; ++i) {
    absl::StrAppend(&text, std::string(1 + i % 97, 'x'), "<E>");
  }
  Write(TestPath("a.txt"), text);
  for (const double fraction : {0.001, 0.01, 0.1}) {
    const auto corpus = ScanAndHoldOut({TestPath("a.txt")}, fraction, 3);
    ASSERT_THAT(corpus, IsOk());
    uint64_t last_held_out = 0, first_trained = ~uint64_t{0};
    int count = 0;
    for (size_t i = 0; i < corpus->parts().size(); ++i) {
      const bool is_validation = corpus->parts()[i].is_validation;
      count += is_validation ? 1 : 0;
      if (is_validation) {
        last_held_out = std::max(last_held_out, Mix(3, i));
      } else {
        first_trained = std::min(first_trained, Mix(3, i));
      }
    }
    EXPECT_EQ(count, std::lround(2000 * fraction));
    EXPECT_LT(last_held_out, first_trained);
  }
}

TEST(DocumentValidationSplitTest, RefusesASingleShortDocument) {
  Write(TestPath("a.txt"), "short");
  Write(TestPath("character.txt"), "漢");
  for (const char* name : {"a.txt", "character.txt"}) {
    EXPECT_THAT(ScanAndHoldOut({TestPath(name)}, 0.1),
                Fails(StatusCode::kInvalidArgument,
                      HasSubstr("--validation_fraction=0")));
  }
  EXPECT_THAT(ScanAndHoldOut({TestPath("character.txt")}, 0.5),
              Fails(StatusCode::kInvalidArgument,
                    HasSubstr("--validation_fraction=0")));
}

}  // namespace
}  // namespace tessera
