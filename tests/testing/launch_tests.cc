#include "tests/testing/launch_tests.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "framework/base/monotonic_clock.h"
#include "gtest/gtest.h"

namespace tessera {

LaunchedTests LaunchTests(const std::string& filter, LaunchOptions options) {
  options.command = {"/proc/self/exe", absl::StrCat("--gtest_filter=", filter),
                     "--gtest_also_run_disabled_tests"};
  char* output = nullptr;
  size_t size = 0;
  options.out = options.err = open_memstream(&output, &size);
  const absl::Time start = MonotonicNow();
  const absl::StatusOr<int> exit_code = Launch(options);
  LaunchedTests launched;
  launched.elapsed = MonotonicNow() - start;
  std::fclose(options.out);
  launched.output.assign(output, size);
  std::free(output);
  EXPECT_TRUE(exit_code.ok()) << exit_code.status();
  launched.exit_code = exit_code.value_or(-1);
  return launched;
}

}  // namespace tessera
