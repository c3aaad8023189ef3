#include "framework/base/text_proto_errors.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "framework/base/nearest_name.h"
#include "framework/base/shorten.h"

namespace tessera {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::EnumDescriptor;
using ::google::protobuf::FieldDescriptor;

// Appends the type of every enum field called `name` in `type` and the messages
// in it.
void FindEnum(const Descriptor& type, absl::string_view name,
              std::vector<const Descriptor*>* seen,
              std::vector<const EnumDescriptor*>* found) {
  if (std::find(seen->begin(), seen->end(), &type) != seen->end()) return;
  seen->push_back(&type);
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.message_type() != nullptr) {
      FindEnum(*field.message_type(), name, seen, found);
    } else if (field.enum_type() != nullptr && field.name() == name) {
      found->push_back(field.enum_type());
    }
  }
}

// The parser's message in terms that the user of a config knows.
std::string Reworded(absl::string_view message) {
  constexpr absl::string_view kNotAscii = "Interpreting non ascii codepoint ";
  int byte = 0;
  if (absl::ConsumePrefix(&message, kNotAscii) &&
      absl::SimpleAtoi(absl::StripSuffix(message, "."), &byte)) {
    return absl::StrFormat(
        "byte 0x%02X is not allowed outside of \"text\" and # comments, where "
        "a config is ASCII; remove it or retype the line",
        byte);
  }
  return Shorten(
      absl::StrCat(absl::AsciiStrToLower(message.substr(0, 1)),
                   message.substr(std::min<size_t>(1, message.size()))));
}

}  // namespace

std::string UnknownFieldMessage(const Descriptor& type,
                                absl::string_view name) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) {
    names.push_back(type.field(i)->name());
  }
  const std::string nearest = NearestName(name, names);
  return absl::StrCat(type.name(), " has no field '", Shorten(name), "'; ",
                      nearest.empty()
                          ? absl::StrCat("it has ", absl::StrJoin(names, ", "))
                          : absl::StrCat("did you mean '", nearest, "'?"));
}

std::string EnumValueNames(const EnumDescriptor& type) {
  std::vector<absl::string_view> names;
  for (int i = 0; i < type.value_count(); ++i) {
    const absl::string_view name = type.value(i)->name();
    if (!absl::EndsWith(name, "UNSPECIFIED")) names.push_back(name);
  }
  return absl::StrJoin(names, ", ");
}

void TextProtoErrors::AddError(int line, int column,
                               const std::string& message) {
  constexpr absl::string_view kUnknownEnum = "Unknown enumeration value of \"";
  if (!absl::StartsWith(message, kUnknownEnum)) {
    Add(line, column, Reworded(message));
    return;
  }
  // ... "VALUE" for field "NAME".
  const std::vector<std::string> parts = absl::StrSplit(message, '"');
  std::vector<const Descriptor*> seen;
  std::vector<const EnumDescriptor*> types;
  FindEnum(root_, parts[3], &seen, &types);
  Add(line, StartOf(parts[1], line, column),
      absl::StrCat("'", Shorten(parts[1]), "' is not a value of ", parts[3],
                   types.size() == 1 ? "; it takes one of " : "",
                   types.size() == 1 ? EnumValueNames(*types[0]) : ""));
}

void TextProtoErrors::AddWarning(int line, int column,
                                 const std::string& message) {
  constexpr absl::string_view kUnknownField = "Message type \"";
  // Message type "TYPE" has no field named "NAME".
  const std::vector<std::string> parts = absl::StrSplit(message, '"');
  if (!absl::StartsWith(message, kUnknownField) || parts.size() < 4) {
    AddError(line, column, message);
    return;
  }
  const Descriptor* type =
      root_.file()->pool()->FindMessageTypeByName(parts[1]);
  Add(line, StartOf(parts[3], line, column),
      type == nullptr ? message : UnknownFieldMessage(*type, parts[3]));
}

void TextProtoErrors::Add(int line, int column, const std::string& what) {
  errors_.push_back({line + 1, column + 1, what});
}

// The parser reports names and values after it has read past them. Returns the
// column at which `token` begins, on the line and before `column`.
int TextProtoErrors::StartOf(absl::string_view token, int line,
                             int column) const {
  const std::vector<absl::string_view> lines = absl::StrSplit(text_, '\n');
  if (line < 0 || line >= static_cast<int>(lines.size())) return column;
  const absl::string_view before = lines[line].substr(0, column);
  // The parser counts a tab as up to 8 columns.
  if (absl::StrContains(before, '\t')) return column;
  const size_t start = before.rfind(token);
  return start == absl::string_view::npos ? column : static_cast<int>(start);
}

}  // namespace tessera
