#ifndef TESTS_FRAMEWORK_DATA_DATA_TEST_UTIL_H_
#define TESTS_FRAMEWORK_DATA_DATA_TEST_UTIL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "framework/data/read/data_source.h"
#include "gmock/gmock.h"

namespace tessera::testing {

// A path with this name in the running test's own folder, which is empty at the
// first call.
std::string TestPath(absl::string_view name);

void Write(const std::string& path, absl::string_view contents);
std::string Read(const std::string& path);

// Changes one byte of a file.
void FlipByte(const std::string& path, size_t offset);

// Synthetic C++ text with indentation, comments and repeated names; about 40
// bytes per line. The same seed gives the same text.
std::string CppText(int lines, uint64_t seed);

// What DataSource::Fill() wrote and returned.
struct Filled {
  std::vector<int64_t> ids, targets;
  std::vector<int64_t> positions;  // empty unless documents are separate
  int64_t valid_targets = 0;
};
Filled Fill(const DataSource& source, const BatchRequest& request);

// The bytes of integers as stored in memory.
template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(T));
}

// EXPECT_THAT(F(), Fails(absl::StatusCode::kNotFound, HasSubstr("x.bin")));
// for an absl::Status or absl::StatusOr.
inline const absl::Status& StatusOf(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& StatusOf(const T& status_or) {
  return status_or.status();
}
MATCHER_P2(Fails, code, message, "") {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status;
  return ::testing::ExplainMatchResult(code, status.code(), result_listener) &&
         ::testing::ExplainMatchResult(message, std::string(status.message()),
                                       result_listener);
}
MATCHER(IsOk, "") {
  *result_listener << StatusOf(arg);
  return StatusOf(arg).ok();
}

}  // namespace tessera::testing

#endif  // TESTS_FRAMEWORK_DATA_DATA_TEST_UTIL_H_
