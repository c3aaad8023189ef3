#include "framework/base/text_proto.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
using ::google::protobuf::OneofDescriptor;
using ::google::protobuf::Reflection;
using ::google::protobuf::TextFormat;
using ParseInfoTree = TextFormat::ParseInfoTree;
using ParseLocation = TextFormat::ParseLocation;

// Deeper than any of our schemas. Protects the stack from hostile text.
constexpr int kMaxNesting = 64;

// One segment of a path: a field's name and, in "name[2]", the index.
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

// The name of the encoding if it is not UTF-8. Recognised by the byte order
// mark or, without one, by the zero bytes around the first ASCII character.
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

// Where `field` stands in a message; line -1 if it is absent. All elements of a
// list in brackets have the same location.
ParseLocation LocationOf(const ParseInfoTree& tree,
                         const FieldDescriptor* field, int index) {
  ParseLocation location = tree.GetLocation(field, index);
  while (location.line < 0 && index > 0) {
    location = tree.GetLocation(field, --index);
  }
  return location;
}

bool Has(const ParseInfoTree& tree, const FieldDescriptor* field) {
  return LocationOf(tree, field, field->is_repeated() ? 0 : -1).line >= 0;
}

// Whether merging a message on top discards the earlier value of `field`,
// because the later message has the list or another case of the oneof.
bool ReplacesEarlier(const ParseInfoTree& tree, const FieldDescriptor& field) {
  if (field.is_repeated()) return Has(tree, &field);
  const OneofDescriptor* oneof = field.containing_oneof();
  for (int i = 0; oneof != nullptr && i < oneof->field_count(); ++i) {
    if (oneof->field(i) != &field && Has(tree, oneof->field(i))) return true;
  }
  return false;
}

// Clears the lists in `message` that a text has, even those that it empties.
void ClearGivenLists(const ParseInfoTree& tree, Message* message) {
  const Descriptor& type = *message->GetDescriptor();
  const Reflection& reflection = *message->GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    if (!Has(tree, field)) continue;
    if (field->is_repeated()) {
      reflection.ClearField(message, field);
    } else if (field->message_type() != nullptr &&
               reflection.HasField(*message, field)) {
      ClearGivenLists(*tree.GetTreeForNested(field, -1),
                      reflection.MutableMessage(message, field));
    }
  }
}

}  // namespace

void TextProtoLocations::Add(TextProtoLocations later) {
  std::move(later.texts_.begin(), later.texts_.end(),
            std::back_inserter(texts_));
}

TextProtoLocations::Found TextProtoLocations::Find(
    absl::string_view path) const {
  Found found;
  const Descriptor* type = type_;
  // The texts that have the enclosing message of the next field, each with its
  // parse tree of that message.
  std::vector<std::pair<const Text*, const ParseInfoTree*>> outer;
  for (const Text& text : texts_) outer.emplace_back(&text, text.tree.get());
  for (absl::string_view name : absl::StrSplit(path, '.')) {
    const PathSegment segment = ParseSegment(name);
    found.exact = false;
    found.field =
        type == nullptr ? nullptr : type->FindFieldByName(segment.name);
    if (found.field == nullptr) break;
    type = found.field->message_type();
    const int index = found.field->is_repeated() ? segment.index : -1;
    Found last = found;
    std::vector<std::pair<const Text*, const ParseInfoTree*>> inner;
    for (const auto& [text, tree] : outer) {
      if (ReplacesEarlier(*tree, *found.field)) {
        last = found;
        inner.clear();
      }
      const ParseLocation location = LocationOf(*tree, found.field, index);
      if (location.line < 0) continue;
      last = {found.field, location, text, /*exact=*/true};
      const ParseInfoTree* nested =
          type == nullptr ? nullptr
                          : tree->GetTreeForNested(found.field, index);
      if (nested != nullptr) inner.emplace_back(text, nested);
    }
    found = last;
    outer = std::move(inner);
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
  if (texts_.empty()) return "defaults";
  const Found found = Find(path);
  if (found.text == nullptr) {
    return absl::StrJoin(texts_, " + ", [](std::string* out, const Text& text) {
      absl::StrAppend(out, text.source_name);
    });
  }
  return absl::StrCat(found.text->source_name, ":", found.location.line + 1,
                      ":", found.location.column + 1);
}

absl::StatusOr<TextProtoLocations> MergeTextProto(absl::string_view text,
                                                  absl::string_view source_name,
                                                  Message* message) {
  if (const absl::string_view encoding = OtherEncoding(text);
      !encoding.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source_name, " is ", encoding,
                     ", but a config must be UTF-8; save it as UTF-8"));
  }
  // Some editors write a UTF-8 byte order mark. It takes no column.
  absl::ConsumePrefix(&text, "\xEF\xBB\xBF");
  const Descriptor& type = *message->GetDescriptor();
  TextProtoLocations locations(type);
  locations.texts_.push_back(
      {std::string(source_name), std::make_unique<ParseInfoTree>()});
  TextProtoErrors errors(text, type);
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.AllowUnknownField(true);
  parser.SetRecursionLimit(kMaxNesting);
  ParseInfoTree* tree = locations.texts_[0].tree.get();
  parser.WriteLocationsTo(tree);
  // Unlike Merge(), Parse() rejects a field that is given twice.
  const std::unique_ptr<Message> parsed(message->New());
  const bool ok = parser.ParseFromString(std::string(text), parsed.get());
  if (!ok || !errors.errors().empty()) return ToStatus(errors, source_name);
  ClearGivenLists(*tree, message);
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
