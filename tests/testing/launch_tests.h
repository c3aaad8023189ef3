#ifndef TESTS_TESTING_LAUNCH_TESTS_H_
#define TESTS_TESTING_LAUNCH_TESTS_H_

#include <sys/types.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

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

// Launches that mostly wait, several at a time.
class ParallelLaunches {
 public:
  explicit ParallelLaunches(int at_once) : at_once_(at_once) {}
  // Ends those that have begun.
  ~ParallelLaunches();
  ParallelLaunches(const ParallelLaunches&) = delete;
  ParallelLaunches& operator=(const ParallelLaunches&) = delete;

  // `launch` is called in another process, when it is its turn: launches begin
  // in the order in which they are added.
  void Add(const std::string& name, std::function<LaunchedTests()> launch);
  // Waits for the result of the launch with that name, while others run.
  LaunchedTests Result(const std::string& name);

 private:
  struct Job {
    std::string name;
    std::function<LaunchedTests()> launch;
    std::FILE* result = nullptr;  // once begun
    pid_t pid = -1;               // while it runs
  };
  void BeginSome();
  void Collect();

  const int at_once_;
  std::vector<Job> jobs_;
  size_t begun_ = 0;
  int running_ = 0;
};

}  // namespace tessera

#endif  // TESTS_TESTING_LAUNCH_TESTS_H_
