#include "trainers/resume_command.h"

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "framework/base/file.h"

namespace tessera {
namespace {

// `word` quoted as one word for a POSIX shell.
std::string Quoted(absl::string_view word) {
  constexpr absl::string_view kPlain = "%+,-./:=@_";
  bool plain = !word.empty();
  for (const char c : word) {
    plain &= absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
             kPlain.find(c) != absl::string_view::npos;
  }
  if (plain) return std::string(word);
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

// Whether `argument` is --resume or --out. Sets `value` if it includes the
// value.
bool SaysWhere(absl::string_view argument, bool* value) {
  if (!absl::ConsumePrefix(&argument, "-")) return false;
  absl::ConsumePrefix(&argument, "-");
  const absl::string_view name = argument.substr(0, argument.find('='));
  *value = name.size() < argument.size();
  return name == "resume" || name == "out";
}

}  // namespace

std::string CommandPrefix(const std::string& program,
                          absl::string_view target) {
  if (const char* command = std::getenv(kCommandVariable)) return command;
  if (std::getenv("BUILD_WORKING_DIRECTORY") != nullptr) {
    return absl::StrCat("bazel run ", target, " --");
  }
  return Quoted(program);
}

std::string ResumeCommand(absl::string_view prefix,
                          const std::vector<std::string>& arguments,
                          const std::string& out) {
  std::string command(prefix);
  for (size_t i = 0; i < arguments.size(); ++i) {
    bool value = false;
    if (SaysWhere(arguments[i], &value)) {
      if (!value) ++i;
      continue;
    }
    absl::StrAppend(&command, " ", Quoted(arguments[i]));
  }
  return absl::StrCat(command, " --out=", Quoted(out));
}

std::vector<std::string> ProcessArguments() {
  // Each argument ends with a zero byte.
  std::string text = ReadFile("/proc/self/cmdline").value_or("");
  if (text.empty()) return {};
  text.pop_back();
  return absl::StrSplit(text, '\0');
}

}  // namespace tessera
