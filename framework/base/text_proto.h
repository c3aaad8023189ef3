#ifndef FRAMEWORK_BASE_TEXT_PROTO_H_
#define FRAMEWORK_BASE_TEXT_PROTO_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"

namespace tessera {

// Source locations of the fields of a text proto, or of several merged ones.
class TextProtoLocations {
 public:
  // Starts without texts; `type` is the root message. Describe() then returns
  // "defaults".
  explicit TextProtoLocations(const google::protobuf::Descriptor& type)
      : type_(&type) {}

  // Adds the locations of a text of the same type that was merged on top.
  void Add(TextProtoLocations later);

  // Whether a text sets the field, given by its path from the root:
  // "optimizer.adamw.beta2", "data.sources[1].weight".
  bool Has(absl::string_view path) const;

  // Whether no text sets the field and its schema has a default for it.
  bool IsDefault(absl::string_view path) const;

  // "FILE:line:column" of the field in the last text that sets it. If no text
  // does: the location of the innermost enclosing message, again in the last
  // text that has it; else "FILE" or "FILE + FILE".
  std::string Describe(absl::string_view path) const;

 private:
  friend absl::StatusOr<TextProtoLocations> MergeTextProto(
      absl::string_view text, absl::string_view source_name,
      google::protobuf::Message* message);
  struct Text {
    std::string source_name;
    std::unique_ptr<google::protobuf::TextFormat::ParseInfoTree> tree;
  };
  struct Found {
    const google::protobuf::FieldDescriptor* field = nullptr;
    // Of the field if `exact`, else of the innermost enclosing message.
    google::protobuf::TextFormat::ParseLocation location;
    const Text* text = nullptr;  // the text with this location
    bool exact = false;
  };
  Found Find(absl::string_view path) const;

  const google::protobuf::Descriptor* type_;
  std::vector<Text> texts_;
};

// Parses `text` and merges it into `message`, which is unchanged on an error.
// Values replace values, messages are merged field by field, a list replaces
// the whole list, and a case of a oneof replaces another case.
//
// InvalidArgument has one line per error, "FILE:line:column: what": all unknown
// field names, each with the nearest existing name, and the first error of
// syntax or value, which ends the parsing. A UTF-8 byte order mark is skipped;
// UTF-16 and UTF-32 are rejected by name.
absl::StatusOr<TextProtoLocations> MergeTextProto(
    absl::string_view text, absl::string_view source_name,
    google::protobuf::Message* message);

// Size limit of a text proto file.
inline constexpr int64_t kMaxTextProtoBytes = int64_t{16} << 20;

// MergeTextProto() for the file at `path`.
absl::StatusOr<TextProtoLocations> ReadTextProto(
    const std::string& path, google::protobuf::Message* message);

// Prints `message` with every default written out, such that parsing the text
// gives a message with the same meaning. A oneof is printed with its set case
// only. An absent field without a default stays absent, except that absent
// messages are printed as empty ones: so schemas must not give the absence of a
// message a meaning, nor be recursive.
std::string PrintWithDefaults(const google::protobuf::Message& message);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_TEXT_PROTO_H_
