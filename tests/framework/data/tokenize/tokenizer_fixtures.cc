#include "tests/framework/data/tokenize/tokenizer_fixtures.h"

#include "absl/strings/str_cat.h"
#include "tests/framework/data/data_test_util.h"

namespace tessera::testing {

std::string FixtureText(absl::string_view name) {
  return Read(
      absl::StrCat("tests/framework/data/tokenize/fixtures/", name, ".json"));
}

nlohmann::json Fixture(absl::string_view name) {
  return nlohmann::json::parse(FixtureText(name));
}

}  // namespace tessera::testing
