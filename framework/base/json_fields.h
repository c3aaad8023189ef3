#ifndef FRAMEWORK_BASE_JSON_FIELDS_H_
#define FRAMEWORK_BASE_JSON_FIELDS_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tessera {

// Reads the fields of a JSON object from a file with any contents; nothing
// throws. The first error becomes the status, an InvalidArgument that names the
// file, the field, what is allowed and the value:
//   a/state.json: samples must be a whole number in [0, 80]; is "many"
// After an error every getter returns an empty value; check status() before
// using any.
class JsonFields {
 public:
  static constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

  // `json` outlives this object. `file` is a name for it in messages.
  JsonFields(const nlohmann::json& json, absl::string_view file);

  bool Has(absl::string_view name) const { return Find(name) != nullptr; }

  // An integer in [0, most], not written as a fraction (1.0).
  int64_t Count(absl::string_view name, int64_t most = kMost);
  uint64_t Unsigned(absl::string_view name);
  double Number(absl::string_view name);
  bool Flag(absl::string_view name);
  std::string Text(absl::string_view name);
  // A string of 16 hexadecimal digits.
  uint64_t Checksum(absl::string_view name);
  // The decoded bytes of a base64 string.
  std::string Base64(absl::string_view name);
  // The decoded elements of an array of one or more base64 strings.
  std::vector<std::string> Base64List(absl::string_view name);
  // The fields of an object, "name.field" in messages. Shares this status.
  JsonFields Object(absl::string_view name);

  // Reports that the field `name` must be `must_be` ("in [1, 2]").
  void Fail(absl::string_view name, absl::string_view must_be);

  const absl::Status& status() const { return *status_; }

 private:
  JsonFields(const nlohmann::json* object, std::string file, std::string prefix,
             std::shared_ptr<absl::Status> status);

  // Null if there is no such field.
  const nlohmann::json* Find(absl::string_view name) const;

  const nlohmann::json* object_;  // null if the value is not an object
  std::string file_;
  std::string prefix_;  // "train." in the object "train"
  std::shared_ptr<absl::Status> status_;
};

}  // namespace tessera

#endif  // FRAMEWORK_BASE_JSON_FIELDS_H_
