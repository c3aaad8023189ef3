#ifndef TESTS_TESTING_LAUNCH_TESTS_H_
#define TESTS_TESTING_LAUNCH_TESTS_H_

#include <string>

#include "absl/time/time.h"
#include "framework/dist/launcher.h"

namespace tessera {

struct LaunchedTests {
  int exit_code = -1;
  std::string output;  // stdout and stderr of all ranks and the launcher
  absl::Duration elapsed;
};

// Runs the tests of this program that match `filter`, disabled ones too, as the
// ranks of `options`, of which it sets the command and the outputs. The calling
// test fails if they cannot be launched.
LaunchedTests LaunchTests(const std::string& filter, LaunchOptions options);

}  // namespace tessera

#endif  // TESTS_TESTING_LAUNCH_TESTS_H_
