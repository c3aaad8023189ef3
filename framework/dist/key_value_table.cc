#include "framework/dist/key_value_table.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// Far more than c10d's backends keep in a store.
constexpr uint32_t kLongestList = 64 << 20;
constexpr size_t kSizeBytes = 4;

void AppendSize(size_t size, std::string& bytes) {
  for (int shift = 0; shift < 32; shift += 8) {
    bytes.push_back(static_cast<char>(size >> shift & 0xff));
  }
}

uint32_t SizeAt(absl::string_view bytes) {
  uint32_t size = 0;
  for (size_t i = 0; i < kSizeBytes; ++i) {
    size |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i]))
            << 8 * i;
  }
  return size;
}

}  // namespace

std::string EncodeFields(const Fields& fields) {
  std::string body;
  for (const std::string& field : fields) {
    AppendSize(field.size(), body);
    body.append(field);
  }
  std::string bytes;
  AppendSize(body.size(), bytes);
  return bytes + body;
}

absl::StatusOr<absl::optional<Fields>> TakeFields(std::string& bytes) {
  if (bytes.size() < kSizeBytes) return absl::nullopt;
  const uint32_t size = SizeAt(bytes);
  if (size > kLongestList) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a message has ", size, " bytes; the limit is ", kLongestList));
  }
  if (bytes.size() < kSizeBytes + size) return absl::nullopt;
  absl::string_view body = absl::string_view(bytes).substr(kSizeBytes, size);
  Fields fields;
  while (!body.empty()) {
    const uint32_t length = body.size() < kSizeBytes ? size : SizeAt(body);
    if (length > size || body.size() < kSizeBytes + length) {
      return absl::InvalidArgumentError("a message is damaged");
    }
    fields.emplace_back(body.substr(kSizeBytes, length));
    body.remove_prefix(kSizeBytes + length);
  }
  bytes.erase(0, kSizeBytes + size);
  return fields;
}

absl::StatusOr<Fields> KeyValueTable::Apply(const Fields& request) {
  const absl::string_view name =
      request.empty() ? absl::string_view() : request[0];
  const size_t arguments = request.size() - (request.empty() ? 0 : 1);
  if (name == "set" && arguments == 2) {
    values_[request[1]] = request[2];
    return Fields{};
  }
  if (name == "get" && arguments == 1) {
    const auto found = values_.find(request[1]);
    return found == values_.end() ? Fields{} : Fields{found->second};
  }
  if (name == "add" && arguments == 2) return Add(request[1], request[2]);
  if (name == "compare_set" && arguments == 3) {
    return CompareSet(request[1], request[2], request[3]);
  }
  if (name == "check") {
    const bool all =
        std::all_of(request.begin() + 1, request.end(),
                    [&](const auto& key) { return values_.count(key) > 0; });
    return Fields{all ? "1" : "0"};
  }
  if (name == "delete" && arguments == 1) {
    return Fields{values_.erase(request[1]) > 0 ? "1" : "0"};
  }
  if (name == "size" && arguments == 0) {
    return Fields{absl::StrCat(values_.size())};
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown request '", name, "' with ", arguments, " arguments"));
}

absl::StatusOr<Fields> KeyValueTable::Add(const std::string& key,
                                          absl::string_view number) {
  std::string& value = values_[key];
  int64_t sum = 0, added = 0;
  if ((!value.empty() && !absl::SimpleAtoi(value, &sum)) ||
      !absl::SimpleAtoi(number, &added)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot add '", number, "' to ", key));
  }
  value = absl::StrCat(sum + added);
  return Fields{value};
}

Fields KeyValueTable::CompareSet(const std::string& key,
                                 const std::string& expected,
                                 const std::string& desired) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    if (!expected.empty()) return {expected};  // as TCPStore does
    values_[key] = desired;
    return {desired};
  }
  if (found->second == expected) found->second = desired;
  return {found->second};
}

}  // namespace tessera
