#include "trainers/program_flags.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/flags/commandlineflag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "framework/base/exit_code.h"
#include "framework/base/nearest_name.h"
#include "framework/base/openmp_waiting.h"
#include "framework/base/process.h"
#include "framework/base/shorten.h"
#include "framework/base/status_macros.h"
#include "framework/base/terminal.h"
#include "framework/dist/world.h"
#include "trainers/rank_errors.h"

namespace tessera {
namespace {

// Abseil handles these while it parses; all others are plain values.
constexpr absl::string_view kFlagsOfAbseil[] = {
    "flagfile", "fromenv", "only_check_args", "tryfromenv", "undefok"};

// Flags that ask for help: Abseil's and "-h". Abseil would exit with 1.
constexpr absl::string_view kHelpFlags[] = {
    "help", "h", "helpfull", "helpmatch", "helpon", "helppackage", "helpshort"};

constexpr int kColumns = 80, kFlagColumns = 24;

bool IsAbseils(const absl::CommandLineFlag& flag) {
  return absl::StrContains(flag.Filename(), "absl/");
}

// All flags, grouped by file and sorted by name.
std::vector<const absl::CommandLineFlag*> SortedFlags() {
  std::vector<const absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) flags.push_back(flag);
  absl::c_sort(flags, [](const auto* a, const auto* b) {
    return std::make_pair(a->Filename(), a->Name()) <
           std::make_pair(b->Filename(), b->Name());
  });
  return flags;
}

std::string DescribeFlag(const absl::CommandLineFlag& flag) {
  const std::string name = absl::StrCat("  --", flag.Name(), " ");
  std::string text = flag.Help();
  const std::string value = flag.DefaultValue();
  if (!value.empty()) absl::StrAppend(&text, " (default: ", value, ")");
  std::string lines = Fold(absl::StrCat(std::string(kFlagColumns, ' '), text),
                           kColumns, kFlagColumns);
  if (name.size() > kFlagColumns) return absl::StrCat(name, "\n", lines, "\n");
  return absl::StrCat(lines.replace(0, name.size(), name), "\n");
}

// The description of a flag in an error: the first sentence.
std::string Brief(const absl::CommandLineFlag& flag) {
  const std::string help = flag.Help();
  return help.substr(0, help.find(". "));
}

// What the values of a flag that can refuse one are.
absl::string_view ValuesOf(const absl::CommandLineFlag& flag) {
  if (flag.IsOfType<bool>()) return "true or false";
  if (flag.IsOfType<uint64_t>()) return "a whole number in [0, 2^64)";
  if (flag.IsOfType<int64_t>()) return "a whole number";
  if (flag.IsOfType<double>()) return "a number";
  if (flag.IsOfType<absl::Duration>()) return "a time such as 90s or 2h";
  return "a whole number below 2^31";
}

// Whether an empty value of a flag would mean that it is not given, as after
// --out=$RUN without that variable. Only an empty --prompt has a meaning.
bool IsUnsetIfEmpty(const absl::CommandLineFlag& flag) {
  return flag.IsOfType<std::string>() && flag.DefaultValue().empty() &&
         flag.Name() != "prompt";
}

std::string FormatHelp(const ProgramText& text, bool with_abseils) {
  std::string help = absl::StrCat(Fold(text.usage, kColumns, 4), "\n\n");
  for (const bool abseils : {false, true}) {
    if (abseils && !with_abseils) continue;
    absl::StrAppend(&help, abseils ? "\nflags of every program\n" : "flags\n");
    for (const absl::CommandLineFlag* flag : SortedFlags()) {
      if (IsAbseils(*flag) == abseils)
        absl::StrAppend(&help, DescribeFlag(*flag));
    }
  }
  if (!with_abseils) {
    absl::StrAppend(&help,
                    "\n--help=TEXT lists the flags that mention TEXT, "
                    "--helpfull all flags, --version\nsays what was built.\n");
  }
  return help;
}

std::string FormatMatches(absl::string_view pattern) {
  std::string help;
  for (const absl::CommandLineFlag* flag : SortedFlags()) {
    if (absl::StrContains(flag->Name(), pattern) ||
        absl::StrContains(flag->Filename(), pattern) ||
        absl::StrContains(flag->Help(), pattern)) {
      absl::StrAppend(&help, DescribeFlag(*flag));
    }
  }
  if (!help.empty()) return help;
  return absl::StrCat("no flag mentions '", Shorten(pattern),
                      "'; --help lists them\n");
}

[[noreturn]] void PrintAndExit(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::exit(0);  // nonzero if stdout has failed: PrepareProcess()
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
  Parser(int argc, char** argv, const ProgramText& text)
      : program_(argv[0]), arguments_(argv + 1, argv + argc), text_(text) {}

  absl::StatusOr<std::vector<std::string>> Parse() {
    std::vector<std::string> others;
    while (next_ < arguments_.size()) {
      char* const argument = arguments_[next_++];
      const absl::string_view text = argument;
      if (text == "--") break;
      if (text.size() < 2 || text[0] != '-') {
        others.emplace_back(text);
      } else if (absl::c_linear_search(kHelpFlags, Argument(text).name)) {
        Help(Argument(text));
      } else if (Argument(text).name == "version") {
        PrintAndExit(absl::StrCat(text_.version, "\n"));
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
  // Prints help and ends the program, unless the value means "no".
  void Help(const Argument& argument) const {
    if (argument.value == "false" || argument.value == "0") return;
    const bool matches = argument.has_value && !argument.value.empty() &&
                         argument.value != "true" && argument.value != "1";
    PrintAndExit(matches ? FormatMatches(argument.value)
                         : FormatHelp(text_, argument.name == "helpfull"));
  }

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
      return Error(NoSuchFlag(argument.name));
    }
    if (!argument.has_value) {
      if (flag->IsOfType<bool>()) {
        argument.value = "true";
      } else if (next_ < arguments_.size()) {
        argument.value = arguments_[next_++];
      } else {
        return Error(absl::StrCat("--", argument.name, " needs a value (",
                                  Brief(*flag), ")"));
      }
    }
    if (argument.value.empty() && IsUnsetIfEmpty(*flag)) {
      return Error(absl::StrCat("--", argument.name,
                                " is empty; give it a value (", Brief(*flag),
                                ") or leave it out"));
    }
    std::string reason;
    if (flag->ParseFrom(argument.value, &reason)) return absl::OkStatus();
    return Error(absl::StrCat("--", argument.name, " must be ", ValuesOf(*flag),
                              "; is '", Shorten(argument.value), "' (",
                              Brief(*flag), ")"));
  }

  static std::string NoSuchFlag(absl::string_view name) {
    std::vector<std::string> names;
    for (const absl::CommandLineFlag* flag : SortedFlags()) {
      if (!IsAbseils(*flag)) names.emplace_back(flag->Name());
    }
    const std::string nearest = NearestName(name, names);
    return absl::StrCat(
        "there is no flag --", Shorten(name), "; ",
        nearest.empty() ? "" : absl::StrCat("did you mean --", nearest, "? "),
        "--help lists them");
  }

  char* const program_;
  const std::vector<char*> arguments_;
  const ProgramText& text_;
  size_t next_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseFlags(int argc, char** argv,
                                                    const ProgramText& text) {
  return Parser(argc, argv, text).Parse();
}

absl::Status ParseFlagsOnly(int argc, char** argv, const ProgramText& text) {
  Parser parser(argc, argv, text);
  ASSIGN_OR_RETURN(const std::vector<std::string> others, parser.Parse());
  if (others.empty()) return absl::OkStatus();
  return parser.Error(absl::StrCat("unexpected argument '", Shorten(others[0]),
                                   "'; flags start with --, and --help lists "
                                   "them"));
}

int RunProgram(int argc, char** argv, const ProgramText& text,
               absl::FunctionRef<absl::Status()> run) {
  PrepareProcess();
  const OpenMpWaiting waiting;
  absl::Status status = ParseFlagsOnly(argc, argv, text);
  if (status.ok()) {
    status = run();
  } else {
    status = ReportOncePerMachine(status,
                                  WorldFromEnvironment().value_or(WorldInfo()));
  }
  return ReportAndExitCode(status);
}

int RunProgramWithArguments(
    int argc, char** argv, const ProgramText& text,
    absl::FunctionRef<absl::Status(const std::vector<std::string>&)> run) {
  PrepareProcess();
  const OpenMpWaiting waiting;
  const absl::StatusOr<std::vector<std::string>> arguments =
      ParseFlags(argc, argv, text);
  return ReportAndExitCode(arguments.ok() ? run(*arguments)
                                          : arguments.status());
}

}  // namespace tessera
