#include "framework/base/text_proto.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/base/text_proto_errors.h"

namespace tessera {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;
using ::google::protobuf::TextFormat;

// More than any schema here nests; hostile text must not exhaust the stack.
constexpr int kMaxNesting = 64;

// One step of a path: a field's name and, in "name[2]", the index.
struct PathSegment {
  std::string name;
  int index = 0;
};

PathSegment ParseSegment(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('[', 1));
  PathSegment segment{std::string(parts.first)};
  int index = 0;
  if (absl::SimpleAtoi(absl::StripSuffix(parts.second, "]"), &index) &&
      index > 0) {
    segment.index = index;
  }
  return segment;
}

absl::Status ToStatus(const TextProtoErrors& errors,
                      absl::string_view source_name) {
  std::string lines;
  for (const TextProtoErrors::Error& error : errors.errors()) {
    absl::StrAppend(&lines, lines.empty() ? "" : "\n", source_name, ":");
    if (error.line > 0)
      absl::StrAppend(&lines, error.line, ":", error.column, ":");
    absl::StrAppend(&lines, " ", error.what);
  }
  return absl::InvalidArgumentError(lines);
}

// The name of the encoding if it is not UTF-8: by its byte order mark or, where
// a program wrote none, by the zeros beside the first ASCII character.
absl::string_view OtherEncoding(absl::string_view text) {
  const absl::string_view first = text.substr(0, 4);
  if (first == absl::string_view("\xFF\xFE\0\0", 4)) return "UTF-32";
  if (first == absl::string_view("\0\0\xFE\xFF", 4)) return "UTF-32";
  if (absl::StartsWith(first, "\xFF\xFE")) return "UTF-16";
  if (absl::StartsWith(first, "\xFE\xFF")) return "UTF-16";
  if (first.size() < 4) return "";
  const auto zeros = std::count(first.begin(), first.end(), '\0');
  if (zeros == 3) return "UTF-32";
  const bool alternate = (first[0] == 0) != (first[1] == 0);
  return zeros == 2 && alternate ? "UTF-16" : "";
}

// Writes the schema's default into an absent scalar field.
void SetDefault(const FieldDescriptor* field, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetInt32(message, field, field->default_value_int32());
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.SetInt64(message, field, field->default_value_int64());
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.SetUInt32(message, field,
                                  field->default_value_uint32());
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.SetUInt64(message, field,
                                  field->default_value_uint64());
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.SetDouble(message, field,
                                  field->default_value_double());
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.SetFloat(message, field, field->default_value_float());
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(message, field, field->default_value_bool());
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.SetEnum(message, field, field->default_value_enum());
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetString(message, field,
                                  field->default_value_string());
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return;
  }
}

void FillDefaults(Message* message) {
  const Descriptor& type = *message->GetDescriptor();
  const Reflection& reflection = *message->GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    const bool is_message =
        field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (field->is_repeated()) {
      const int size = is_message ? reflection.FieldSize(*message, field) : 0;
      for (int j = 0; j < size; ++j) {
        FillDefaults(reflection.MutableRepeatedMessage(message, field, j));
      }
      continue;
    }
    const bool set = reflection.HasField(*message, field);
    if (!set && field->containing_oneof() != nullptr) continue;
    if (is_message) {
      FillDefaults(reflection.MutableMessage(message, field));
    } else if (!set && field->has_default_value()) {
      SetDefault(field, message);
    }
  }
}

}  // namespace

TextProtoLocations::TextProtoLocations(absl::string_view source_name,
                                       const Descriptor& type)
    : source_name_(source_name),
      type_(&type),
      tree_(std::make_unique<TextFormat::ParseInfoTree>()) {}

TextProtoLocations::Found TextProtoLocations::Find(
    absl::string_view path) const {
  Found found;
  const Descriptor* type = type_;
  const TextFormat::ParseInfoTree* tree = tree_.get();
  for (absl::string_view text : absl::StrSplit(path, '.')) {
    const PathSegment segment = ParseSegment(text);
    found.field =
        type == nullptr ? nullptr : type->FindFieldByName(segment.name);
    found.exact = false;
    if (found.field == nullptr) break;
    type = found.field->message_type();
    if (tree == nullptr) continue;
    const int index = found.field->is_repeated() ? segment.index : -1;
    const TextFormat::ParseLocation location =
        tree->GetLocation(found.field, index);
    found.exact = location.line >= 0;
    if (found.exact) found.location = location;
    tree = found.exact && type != nullptr
               ? tree->GetTreeForNested(found.field, index)
               : nullptr;
  }
  return found;
}

bool TextProtoLocations::Has(absl::string_view path) const {
  return Find(path).exact;
}

bool TextProtoLocations::IsDefault(absl::string_view path) const {
  const Found found = Find(path);
  return !found.exact && found.field != nullptr &&
         found.field->has_default_value();
}

std::string TextProtoLocations::Describe(absl::string_view path) const {
  const TextFormat::ParseLocation location = Find(path).location;
  if (location.line < 0) return source_name_;
  return absl::StrCat(source_name_, ":", location.line + 1, ":",
                      location.column + 1);
}

absl::StatusOr<TextProtoLocations> MergeTextProto(absl::string_view text,
                                                  absl::string_view source_name,
                                                  Message* message) {
  if (const absl::string_view encoding = OtherEncoding(text);
      !encoding.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source_name, " is ", encoding,
                     ", a config is UTF-8; save it as UTF-8"));
  }
  // Some editors begin a file with UTF-8's byte order mark. It has no column.
  absl::ConsumePrefix(&text, "\xEF\xBB\xBF");
  const Descriptor& type = *message->GetDescriptor();
  TextProtoLocations locations(source_name, type);
  TextProtoErrors errors(text, type);
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.AllowUnknownField(true);
  parser.SetRecursionLimit(kMaxNesting);
  parser.WriteLocationsTo(locations.tree_.get());
  // Parse, unlike Merge, refuses a field that is given twice.
  const std::unique_ptr<Message> parsed(message->New());
  const bool ok = parser.ParseFromString(std::string(text), parsed.get());
  if (!ok || !errors.errors().empty()) return ToStatus(errors, source_name);
  message->MergeFrom(*parsed);
  return locations;
}

absl::StatusOr<TextProtoLocations> ReadTextProto(const std::string& path,
                                                 Message* message) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxTextProtoBytes));
  return MergeTextProto(text, path, message);
}

std::string PrintWithDefaults(const Message& message) {
  const std::unique_ptr<Message> filled(message.New());
  filled->CopyFrom(message);
  FillDefaults(filled.get());
  TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  printer.SetUseShortRepeatedPrimitives(true);
  std::string text;
  printer.PrintToString(*filled, &text);
  return text;
}

}  // namespace tessera
