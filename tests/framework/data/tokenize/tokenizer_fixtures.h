#ifndef TESTS_FRAMEWORK_DATA_TOKENIZE_TOKENIZER_FIXTURES_H_
#define TESTS_FRAMEWORK_DATA_TOKENIZE_TOKENIZER_FIXTURES_H_

#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tessera::testing {

// What Python's `tokenizers` wrote: see fixtures/make_fixtures.py.
std::string FixtureText(absl::string_view name);
nlohmann::json Fixture(absl::string_view name);

}  // namespace tessera::testing

#endif  // TESTS_FRAMEWORK_DATA_TOKENIZE_TOKENIZER_FIXTURES_H_
