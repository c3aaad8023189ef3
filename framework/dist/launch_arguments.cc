#include "framework/dist/launch_arguments.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

constexpr int kMaxProcesses = 1024;

absl::StatusOr<int> ParseProcesses(absl::string_view text) {
  int nproc = 0;
  if (absl::SimpleAtoi(text, &nproc) && nproc >= 1 && nproc <= kMaxProcesses) {
    return nproc;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--nproc=", text, " must be a number of processes in [1, ",
                   kMaxProcesses, "]"));
}

absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view text) {
  absl::Duration timeout;
  if (absl::ParseDuration(text, &timeout) && timeout > absl::ZeroDuration()) {
    return timeout;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--timeout=", text, " must be a time above 0, such as 90s, 15m or 2h"));
}

// Returns whether arguments[*i] is `flag`. If so, sets its value, which may be
// the next argument, and moves *i to the last of them.
absl::StatusOr<bool> TakeFlag(absl::string_view flag,
                              const std::vector<std::string>& arguments,
                              size_t* i, std::string* value) {
  absl::string_view argument = arguments[*i];
  if (!absl::ConsumePrefix(&argument, "--")) return false;
  if (!absl::ConsumePrefix(&argument, flag)) return false;
  if (absl::ConsumePrefix(&argument, "=")) {
    *value = std::string(argument);
    return true;
  }
  if (!argument.empty()) return false;
  if (*i + 1 == arguments.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " needs a value"));
  }
  *value = arguments[++*i];
  return true;
}

}  // namespace

absl::StatusOr<LaunchArguments> ParseLaunchArguments(
    const std::vector<std::string>& arguments) {
  LaunchArguments parsed;
  size_t i = 0;
  for (; i < arguments.size() && arguments[i] != "--"; ++i) {
    std::string value;
    ASSIGN_OR_RETURN(const bool nproc,
                     TakeFlag("nproc", arguments, &i, &value));
    if (nproc) {
      ASSIGN_OR_RETURN(parsed.nproc, ParseProcesses(value));
      continue;
    }
    ASSIGN_OR_RETURN(const bool program,
                     TakeFlag("program", arguments, &i, &value));
    if (program) {
      if (value.empty()) {
        return absl::InvalidArgumentError(
            "--program is empty; name a program, or leave it out for train");
      }
      parsed.program = value;
      continue;
    }
    ASSIGN_OR_RETURN(const bool timeout,
                     TakeFlag("timeout", arguments, &i, &value));
    if (timeout) {
      ASSIGN_OR_RETURN(parsed.timeout, ParseTimeout(value));
    } else if (arguments[i] == "--help") {
      parsed.help = true;
    } else {
      parsed.rest.push_back(arguments[i]);
    }
  }
  if (i < arguments.size()) ++i;
  parsed.rest.insert(parsed.rest.end(), arguments.begin() + i, arguments.end());
  if (parsed.nproc == 0 && !parsed.help) {
    return absl::InvalidArgumentError(
        "--nproc is missing: the number of processes, one per GPU, such as "
        "--nproc=2");
  }
  return parsed;
}

}  // namespace tessera
