// Trains on several GPUs of this machine: runs N processes of `train`, or of
// another program, one per GPU, without torchrun or Python.
//
//   launch --nproc=2 --config=configs/small_bf16.pbtxt

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "framework/base/exit_code.h"
#include "framework/base/process.h"
#include "framework/base/runtime_files.h"
#include "framework/base/status_macros.h"
#include "framework/dist/launch_arguments.h"
#include "framework/dist/launcher.h"
#include "trainers/resume_command.h"

namespace tessera {
namespace {

constexpr char kUsage[] =
    "usage: launch --nproc=N [--timeout=DURATION] [--program=PROGRAM] [--]\n"
    "           ARGUMENTS OF train...\n"
    "\n"
    "Runs N processes of `train` on this machine, one per GPU, as one\n"
    "data-parallel run. Lines of process R are prefixed with \"[R] \".\n"
    "\n"
    "  --nproc=N           number of processes\n"
    "  --timeout=DURATION  end the run after this time, such as 90s or 2h\n"
    "  --program=PROGRAM   run this program of the bundle, or at this path,\n"
    "                      instead of train, such as train_step_bench\n"
    "\n"
    "The first SIGINT, SIGTERM, SIGHUP or SIGUSR1 is forwarded to the\n"
    "processes; another one, at least a second later, kills them. The exit\n"
    "code is that of the first process that failed, 124 after --timeout.\n";

// The program at this path, among the runfiles, or next to this one in a
// bundle.
absl::StatusOr<std::string> FindProgram(const std::string& name) {
  if (absl::StartsWith(name, "/")) return name;
  const absl::StatusOr<std::string> runfile =
      FindRuntimeFile(absl::StrCat("trainers/", name));
  if (runfile.ok()) return runfile;
  const absl::StatusOr<std::string> beside = FindRuntimeFile(name);
  return beside.ok() ? beside : runfile;
}

// The command before the arguments of `train` for a run like this one.
std::string CommandOfRanks(const std::string& program,
                           const LaunchArguments& parsed) {
  std::string command = absl::StrCat(
      CommandPrefix(program, "//trainers:launch"), " --nproc=", parsed.nproc);
  if (parsed.timeout != absl::InfiniteDuration()) {
    absl::StrAppend(&command,
                    " --timeout=", absl::FormatDuration(parsed.timeout));
  }
  return command;
}

// Whether the ranks print a result: every program does, except `train` when it
// trains.
bool PrintsResult(const LaunchArguments& parsed) {
  constexpr absl::string_view kFlags[] = {
      "build_info", "dry_run",  "print_config", "print_step",
      "help",       "helpfull", "version"};
  if (parsed.program != LaunchArguments().program) return true;
  return absl::c_any_of(parsed.rest, [&](absl::string_view argument) {
    if (!absl::ConsumePrefix(&argument, "-")) return false;
    absl::ConsumePrefix(&argument, "-");
    return absl::c_linear_search(kFlags,
                                 argument.substr(0, argument.find('=')));
  });
}

absl::StatusOr<int> Main(const std::string& program,
                         const std::vector<std::string>& arguments) {
  ASSIGN_OR_RETURN(LaunchArguments parsed, ParseLaunchArguments(arguments));
  if (parsed.help) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  LaunchOptions options;
  options.nproc = parsed.nproc;
  options.timeout = parsed.timeout;
  options.environment = {{kCommandVariable, CommandOfRanks(program, parsed)}};
  ASSIGN_OR_RETURN(std::string found, FindProgram(parsed.program));
  options.command = {std::move(found)};
  options.command.insert(options.command.end(), parsed.rest.begin(),
                         parsed.rest.end());
  if (PrintsResult(parsed)) options.out_kind = OutputKind::kResult;
  return Launch(options);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::PrepareProcess();
  const absl::StatusOr<int> exit_code =
      tessera::Main(argv[0], std::vector<std::string>(argv + 1, argv + argc));
  if (exit_code.ok()) return *exit_code;
  return tessera::ReportAndExitCode(exit_code.status());
}
