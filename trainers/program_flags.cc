#include "trainers/program_flags.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/base/call_once.h"
#include "absl/flags/commandlineflag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "framework/base/exit_code.h"
#include "framework/base/process.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

// Abseil acts on these while it parses; the rest are plain values.
constexpr absl::string_view kFlagsOfAbseil[] = {
    "help",        "helpfull",        "helpmatch",  "helpon",
    "helppackage", "helpshort",       "version",    "flagfile",
    "fromenv",     "only_check_args", "tryfromenv", "undefok",
};

void ConfigureUsage(const ProgramText& text) {
  // Abseil ends a program that says it a second time.
  static absl::once_flag once;
  absl::call_once(once, absl::SetProgramUsageMessage, text.usage);
  absl::FlagsUsageConfig config;
  // Not those of the file with main() alone, Abseil's default: programs share
  // flags, as those of config_flags.cc.
  config.contains_help_flags = [](absl::string_view file) {
    return !absl::StrContains(file, "absl/");
  };
  config.version_string = [version = text.version] { return version + "\n"; };
  absl::SetFlagsUsageConfig(std::move(config));
}

// The parts of "--name=value".
struct Argument {
  explicit Argument(absl::string_view argument) {
    absl::ConsumePrefix(&argument, "-");
    absl::ConsumePrefix(&argument, "-");
    const size_t equals = argument.find('=');
    name = argument.substr(0, equals);
    has_value = equals != absl::string_view::npos;
    if (has_value) value = argument.substr(equals + 1);
  }

  absl::string_view name;
  bool has_value = false;
  absl::string_view value;
};

class Parser {
 public:
  Parser(int argc, char** argv)
      : program_(argv[0]), arguments_(argv + 1, argv + argc) {}

  absl::StatusOr<std::vector<std::string>> Parse() {
    std::vector<std::string> others;
    while (next_ < arguments_.size()) {
      char* const argument = arguments_[next_++];
      const absl::string_view text = argument;
      if (text == "--") break;
      if (text.size() < 2 || text[0] != '-') {
        others.emplace_back(text);
      } else if (absl::c_linear_search(kFlagsOfAbseil, Argument(text).name)) {
        char* alone[] = {program_, argument, nullptr};
        absl::ParseCommandLine(2, alone);
      } else {
        RETURN_IF_ERROR(Set(Argument(text)));
      }
    }
    others.insert(others.end(), arguments_.begin() + next_, arguments_.end());
    return others;
  }

  absl::Status Error(absl::string_view message) const {
    absl::string_view name = program_;
    name.remove_prefix(name.rfind('/') + 1);
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", message));
  }

 private:
  absl::Status Set(Argument argument) {
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(argument.name);
    absl::string_view positive = argument.name;
    if (flag == nullptr && !argument.has_value &&
        absl::ConsumePrefix(&positive, "no")) {
      flag = absl::FindCommandLineFlag(positive);
      if (flag != nullptr && !flag->IsOfType<bool>()) flag = nullptr;
      argument.has_value = true;
      argument.value = "false";
    }
    if (flag == nullptr) {
      return Error(absl::StrCat("there is no flag --", argument.name,
                                "; --help lists them"));
    }
    if (!argument.has_value) {
      if (flag->IsOfType<bool>()) {
        argument.value = "true";
      } else if (next_ < arguments_.size()) {
        argument.value = arguments_[next_++];
      } else {
        return Error(absl::StrCat("--", argument.name, " needs a value (",
                                  flag->Help(), ")"));
      }
    }
    std::string reason;
    if (flag->ParseFrom(argument.value, &reason)) return absl::OkStatus();
    return Error(absl::StrCat("--", argument.name, " cannot be '",
                              argument.value, "' (", flag->Help(), ")"));
  }

  char* const program_;
  const std::vector<char*> arguments_;
  size_t next_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseFlags(int argc, char** argv,
                                                    const ProgramText& text) {
  ConfigureUsage(text);
  return Parser(argc, argv).Parse();
}

absl::Status ParseFlagsOnly(int argc, char** argv, const ProgramText& text) {
  ConfigureUsage(text);
  Parser parser(argc, argv);
  ASSIGN_OR_RETURN(const std::vector<std::string> others, parser.Parse());
  if (others.empty()) return absl::OkStatus();
  return parser.Error(absl::StrCat("unexpected argument '", others[0],
                                   "'; flags start with --, and --help lists "
                                   "them"));
}

int RunProgram(int argc, char** argv, const ProgramText& text,
               absl::FunctionRef<absl::Status()> run) {
  PrepareProcess();
  absl::Status status = ParseFlagsOnly(argc, argv, text);
  if (status.ok()) status = run();
  return ReportAndExitCode(status);
}

}  // namespace tessera
