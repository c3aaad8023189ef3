#include "framework/base/json_fields.h"

#include <cmath>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// `json` as shown in a message, shortened: a file can hold megabytes.
std::string Shown(const Json& json) {
  constexpr size_t kLongest = 60;
  std::string text =
      json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kLongest) {
    text = absl::StrCat(text.substr(0, kLongest), "... (", text.size(),
                        " characters)");
  }
  return text;
}

}  // namespace

JsonFields::JsonFields(const Json& json, absl::string_view file)
    : JsonFields(json.is_object() ? &json : nullptr, std::string(file), "",
                 std::make_shared<absl::Status>()) {
  if (object_ != nullptr) return;
  *status_ = absl::InvalidArgumentError(absl::StrCat(
      file, json.is_discarded() ? " is not JSON; must be a JSON object"
                                : " must be a JSON object; is " + Shown(json)));
}

JsonFields::JsonFields(const Json* object, std::string file, std::string prefix,
                       std::shared_ptr<absl::Status> status)
    : object_(object),
      file_(std::move(file)),
      prefix_(std::move(prefix)),
      status_(std::move(status)) {}

const Json* JsonFields::Find(absl::string_view name) const {
  if (object_ == nullptr) return nullptr;
  const auto found = object_->find(std::string(name));
  return found == object_->end() ? nullptr : &*found;
}

void JsonFields::Fail(absl::string_view name, absl::string_view must_be) {
  const Json* field = Find(name);
  status_->Update(absl::InvalidArgumentError(
      absl::StrCat(file_, ": ", prefix_, name, " must be ", must_be, "; is ",
                   field == nullptr ? "missing" : Shown(*field))));
}

int64_t JsonFields::Count(absl::string_view name, int64_t most) {
  const Json* field = Find(name);
  if (field != nullptr && field->is_number_unsigned() &&
      field->get<uint64_t>() <= static_cast<uint64_t>(most)) {
    return field->get<int64_t>();
  }
  Fail(name, absl::StrCat("a whole number in [0, ", most, "]"));
  return 0;
}

uint64_t JsonFields::Unsigned(absl::string_view name) {
  const Json* field = Find(name);
  if (field != nullptr && field->is_number_unsigned()) {
    return field->get<uint64_t>();
  }
  Fail(name, "a whole number in [0, 2^64)");
  return 0;
}

double JsonFields::Number(absl::string_view name) {
  const Json* field = Find(name);
  if (field != nullptr && field->is_number() &&
      std::isfinite(field->get<double>())) {
    return field->get<double>();
  }
  Fail(name, "a number");
  return 0;
}

bool JsonFields::Flag(absl::string_view name) {
  const Json* field = Find(name);
  if (field != nullptr && field->is_boolean()) return field->get<bool>();
  Fail(name, "true or false");
  return false;
}

std::string JsonFields::Text(absl::string_view name) {
  const Json* field = Find(name);
  if (field != nullptr && field->is_string()) return *field;
  Fail(name, "a string");
  return "";
}

uint64_t JsonFields::Checksum(absl::string_view name) {
  const std::string hex = Text(name);
  uint64_t checksum = 0;
  if (hex.size() == 16 && absl::SimpleHexAtoi(hex, &checksum)) return checksum;
  Fail(name, "16 hexadecimal digits");
  return 0;
}

std::string JsonFields::Base64(absl::string_view name) {
  std::string bytes;
  if (absl::Base64Unescape(Text(name), &bytes)) return bytes;
  Fail(name, "in base64");
  return "";
}

std::vector<std::string> JsonFields::Base64List(absl::string_view name) {
  const Json* field = Find(name);
  std::vector<std::string> list;
  bool good = field != nullptr && field->is_array() && !field->empty();
  for (size_t i = 0; good && i < field->size(); ++i) {
    const Json& item = (*field)[i];
    good = item.is_string() &&
           absl::Base64Unescape(item.get_ref<const std::string&>(),
                                &list.emplace_back());
  }
  if (good) return list;
  Fail(name, "an array of one or more strings in base64");
  return {};
}

JsonFields JsonFields::Object(absl::string_view name) {
  const Json* field = Find(name);
  if (field == nullptr || !field->is_object()) {
    Fail(name, "an object");
    field = nullptr;
  }
  return JsonFields(field, file_, absl::StrCat(prefix_, name, "."), status_);
}

}  // namespace tessera
