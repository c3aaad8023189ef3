#ifndef TESTS_FRAMEWORK_DATA_PREPARE_PART_TEXTS_H_
#define TESTS_FRAMEWORK_DATA_PREPARE_PART_TEXTS_H_

#include <string>
#include <vector>

#include "framework/data/prepare/corpus.h"
#include "gtest/gtest.h"
#include "tests/framework/data/data_test_util.h"

namespace tessera {
namespace testing {

// The text of every part, in order.
inline std::vector<std::string> PartTexts(const Corpus& corpus) {
  std::vector<std::string> texts;
  for (const Corpus::Part& part : corpus.parts()) {
    texts.emplace_back();
    EXPECT_THAT(corpus.Read(part, &texts.back()), IsOk());
  }
  return texts;
}

}  // namespace testing
}  // namespace tessera

#endif  // TESTS_FRAMEWORK_DATA_PREPARE_PART_TEXTS_H_
