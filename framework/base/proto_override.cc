#include "framework/base/proto_override.h"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "framework/base/shorten.h"
#include "framework/base/status_macros.h"
#include "framework/base/text_proto_errors.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"

namespace tessera {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::TextFormat;

struct Target {
  Message* message = nullptr;
  const FieldDescriptor* field = nullptr;
};

// Resolves `path` to a field; creates absent messages on the way.
absl::StatusOr<Target> Resolve(absl::string_view path, Message* root) {
  Target target{root};
  for (absl::string_view name : absl::StrSplit(path, '.')) {
    if (target.field != nullptr) {
      if (target.field->message_type() == nullptr ||
          target.field->is_repeated()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "'", target.field->name(), "' is ",
            target.field->is_repeated() ? "a list, set as a whole: [a, b]"
                                        : "a value and has no fields"));
      }
      target.message = target.message->GetReflection()->MutableMessage(
          target.message, target.field);
    }
    const auto& type = *target.message->GetDescriptor();
    target.field = type.FindFieldByName(std::string(name));
    if (target.field == nullptr) {
      return absl::InvalidArgumentError(UnknownFieldMessage(type, name));
    }
  }
  return target;
}

std::string Expected(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return "a whole number below 2^31";
    case FieldDescriptor::CPPTYPE_INT64:
      return "a whole number below 2^63";
    case FieldDescriptor::CPPTYPE_UINT32:
      return "a whole number from 0, below 2^32";
    case FieldDescriptor::CPPTYPE_UINT64:
      return "a whole number from 0, below 2^64";
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      return "a number";
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::StrCat("one of ", EnumValueNames(*field.enum_type()));
    case FieldDescriptor::CPPTYPE_STRING:
      return "text";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return absl::StrCat("{...} with fields of ",
                          field.message_type()->name());
  }
  return "a value";
}

bool IsQuoted(absl::string_view value) {
  return absl::StartsWith(value, "\"") || absl::StartsWith(value, "'");
}

// Sets `target`, or appends to it if it is repeated.
absl::Status SetOne(absl::string_view value, const Target& target) {
  const FieldDescriptor& field = *target.field;
  const bool is_text = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
  const std::string text = is_text && !IsQuoted(value)
                               ? absl::StrCat("\"", absl::CEscape(value), "\"")
                               : std::string(value);
  TextProtoErrors errors(text, *target.message->GetDescriptor());
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.AllowUnknownField(true);
  const bool ok =
      parser.ParseFieldValueFromString(text, &field, target.message);
  if (ok && errors.errors().empty()) return absl::OkStatus();
  std::string what =
      absl::StrCat("'", Shorten(value), "' is not ", Expected(field));
  // For a scalar, the parser's message adds nothing.
  if (field.message_type() != nullptr) {
    for (const TextProtoErrors::Error& error : errors.errors()) {
      absl::StrAppend(&what, ": ", error.what);
    }
  }
  return absl::InvalidArgumentError(what);
}

// Splits "a, {b: 1, c: 2}, 'd,e'" into "a", "{b: 1, c: 2}", "'d,e'".
std::vector<absl::string_view> SplitList(absl::string_view list) {
  std::vector<absl::string_view> elements;
  int depth = 0;
  char quote = 0;
  size_t start = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const char c = list[i];
    if (quote != 0) {
      if (c == '\\') ++i;
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ',' && depth == 0) {
      elements.push_back(list.substr(start, i - start));
      start = i + 1;
    }
  }
  elements.push_back(list.substr(start));
  return elements;
}

absl::Status SetField(absl::string_view value, const Target& target) {
  target.message->GetReflection()->ClearField(target.message, target.field);
  if (!target.field->is_repeated()) return SetOne(value, target);
  if (!absl::StartsWith(value, "[")) return SetOne(value, target);
  if (!absl::EndsWith(value, "]")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", Shorten(value), "' has no closing ]; a list is [a, b]"));
  }
  const absl::string_view list = value.substr(1, value.size() - 2);
  if (absl::StripAsciiWhitespace(list).empty()) return absl::OkStatus();
  for (absl::string_view element : SplitList(list)) {
    RETURN_IF_ERROR(SetOne(absl::StripAsciiWhitespace(element), target));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ApplyOverride(absl::string_view assignment,
                                          Message* message) {
  const size_t equals = assignment.find('=');
  if (equals == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--set ", Shorten(assignment), ": has no '='; write --set PATH=VALUE"));
  }
  const std::string path(
      absl::StripAsciiWhitespace(assignment.substr(0, equals)));
  const absl::string_view value =
      absl::StripAsciiWhitespace(assignment.substr(equals + 1));
  const std::unique_ptr<Message> changed(message->New());
  changed->CopyFrom(*message);
  absl::StatusOr<Target> target = Resolve(path, changed.get());
  absl::Status status =
      target.ok() ? SetField(value, *target) : target.status();
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set ", Shorten(assignment), ": ", status.message()));
  }
  message->CopyFrom(*changed);
  return path;
}

}  // namespace tessera
