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

// Where in a text proto, or in several merged in order, each field stands.
class TextProtoLocations {
 public:
  // Of no text of a message of `type`: Describe() gives "defaults".
  explicit TextProtoLocations(const google::protobuf::Descriptor& type)
      : type_(&type) {}

  // Adds the locations of a text that was merged on top, of the same type.
  void Add(TextProtoLocations later);

  // Whether a text has the field, named by its path from the root:
  // "optimizer.adamw.beta2", "data.sources[1].weight".
  bool Has(absl::string_view path) const;

  // Whether the texts leave the field to a default that its schema states.
  bool IsDefault(absl::string_view path) const;

  // "FILE:line:column" of the field in the last text that sets it. If none
  // does, the place of the innermost message around it that a text has, again
  // in the last one; else "FILE", or "FILE + FILE".
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
    // Of the field, if `exact`, else of the innermost message around it.
    google::protobuf::TextFormat::ParseLocation location;
    const Text* text = nullptr;  // which has it
    bool exact = false;
  };
  Found Find(absl::string_view path) const;

  const google::protobuf::Descriptor* type_;
  std::vector<Text> texts_;
};

// Parses `text` and merges it into `message`, which stays as it is on an error.
// Values replace values, messages are merged field by field, a list replaces
// the whole list, and a case of a oneof replaces another case.
// InvalidArgument holds a line for each error found, "FILE:line:column: what":
// every unknown field name, with the nearest that exists, and the first error
// of syntax or value, after which nothing can be read. A byte order mark of
// UTF-8 is skipped; UTF-16 and UTF-32 are refused by name.
absl::StatusOr<TextProtoLocations> MergeTextProto(
    absl::string_view text, absl::string_view source_name,
    google::protobuf::Message* message);

// The most bytes that a file of a text proto may have.
inline constexpr int64_t kMaxTextProtoBytes = int64_t{16} << 20;

// The same for the file at `path`.
absl::StatusOr<TextProtoLocations> ReadTextProto(
    const std::string& path, google::protobuf::Message* message);

// The text proto of `message` with every default written out, which parses to a
// message of the same meaning. In a oneof only the case that is set is written.
// A field without a default in the schema that is absent stays absent. Any
// other message that is absent is written as an empty one: schemas must not
// give its absence a meaning of its own, nor be recursive.
std::string PrintWithDefaults(const google::protobuf::Message& message);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_TEXT_PROTO_H_
