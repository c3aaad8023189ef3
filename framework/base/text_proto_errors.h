#ifndef FRAMEWORK_BASE_TEXT_PROTO_ERRORS_H_
#define FRAMEWORK_BASE_TEXT_PROTO_ERRORS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"

namespace tessera {

// "ModelConfig has no field 'num_layer'; did you mean 'num_layers'?" or, if no
// name is near, a list of the existing names.
std::string UnknownFieldMessage(const google::protobuf::Descriptor& type,
                                absl::string_view name);

// "FP32, TF32, BF16": the values that a config may use, without X_UNSPECIFIED.
std::string EnumValueNames(const google::protobuf::EnumDescriptor& type);

// Collects the errors that TextFormat::Parser reports for `text`, in terms that
// the user of a config knows. The parser must allow unknown fields: it then
// reports them as warnings and continues, so that all misspelt names are found
// at once.
class TextProtoErrors : public google::protobuf::io::ErrorCollector {
 public:
  struct Error {
    int line, column;  // 1-based; 0: the whole message
    std::string what;
  };

  // `root` is the type of the message that `text` is parsed into; both outlive
  // this object.
  TextProtoErrors(absl::string_view text,
                  const google::protobuf::Descriptor& root)
      : text_(text), root_(root) {}

  void AddError(int line, int column, const std::string& message) override;
  void AddWarning(int line, int column, const std::string& message) override;

  const std::vector<Error>& errors() const { return errors_; }

 private:
  void Add(int line, int column, const std::string& what);
  int StartOf(absl::string_view token, int line, int column) const;

  const absl::string_view text_;
  const google::protobuf::Descriptor& root_;
  std::vector<Error> errors_;
};

}  // namespace tessera

#endif  // FRAMEWORK_BASE_TEXT_PROTO_ERRORS_H_
