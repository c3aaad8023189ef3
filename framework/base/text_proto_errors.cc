#include "framework/base/text_proto_errors.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::EnumDescriptor;
using ::google::protobuf::FieldDescriptor;

// Levenshtein: the fewest insertions, deletions and replacements.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // from a's first i bytes to b's j
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

// Appends the type of every enum field called `name` in `type` and below.
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

}  // namespace

std::string UnknownFieldMessage(const Descriptor& type,
                                absl::string_view name) {
  const std::string lower_name = absl::AsciiStrToLower(name);
  std::vector<std::string> names;
  std::string nearest;
  // A third of the name wrong is a slip; more is another name.
  size_t nearest_distance = (name.size() + 2) / 3 + 1;
  for (int i = 0; i < type.field_count(); ++i) {
    names.push_back(type.field(i)->name());
    const size_t distance = EditDistance(lower_name, names.back());
    if (distance < nearest_distance) {
      nearest_distance = distance;
      nearest = names.back();
    }
  }
  return absl::StrCat(type.name(), " has no field '", name, "'; ",
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
    Add(line, column,
        absl::StrCat(absl::AsciiStrToLower(message.substr(0, 1)),
                     message.substr(1)));
    return;
  }
  // ... "VALUE" for field "NAME".
  const std::vector<std::string> parts = absl::StrSplit(message, '"');
  std::vector<const Descriptor*> seen;
  std::vector<const EnumDescriptor*> types;
  FindEnum(root_, parts[3], &seen, &types);
  Add(line, StartOf(parts[1], line, column),
      absl::StrCat("'", parts[1], "' is no value of ", parts[3],
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

// The parser reports names and values when it has read past them; this is where
// on the line, up to `column`, `token` begins.
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
