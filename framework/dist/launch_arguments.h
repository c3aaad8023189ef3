#ifndef FRAMEWORK_DIST_LAUNCH_ARGUMENTS_H_
#define FRAMEWORK_DIST_LAUNCH_ARGUMENTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera {

// `launch --nproc=2 [--timeout=90s] [--program=train] [--] REST...`.
struct LaunchArguments {
  int nproc = 0;
  std::string program = "train";
  absl::Duration timeout = absl::InfiniteDuration();
  bool help = false;
  std::vector<std::string> rest;  // the ranks' arguments, in order
};

// Parses flags up to "--". "--nproc 2" is the same as "--nproc=2". All
// arguments that are not the launcher's go to the ranks.
absl::StatusOr<LaunchArguments> ParseLaunchArguments(
    const std::vector<std::string>& arguments);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_LAUNCH_ARGUMENTS_H_
