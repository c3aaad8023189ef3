#include "framework/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "framework/base/json.h"
#include "framework/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

struct DtypeInfo {
  StoredDtype dtype;
  absl::string_view name;
  int64_t size_bytes;
};

constexpr std::array<DtypeInfo, 15> kDtypes = {{
    {StoredDtype::kBool, "BOOL", 1},
    {StoredDtype::kU8, "U8", 1},
    {StoredDtype::kI8, "I8", 1},
    {StoredDtype::kF8E5M2, "F8_E5M2", 1},
    {StoredDtype::kF8E4M3, "F8_E4M3", 1},
    {StoredDtype::kU16, "U16", 2},
    {StoredDtype::kI16, "I16", 2},
    {StoredDtype::kF16, "F16", 2},
    {StoredDtype::kBF16, "BF16", 2},
    {StoredDtype::kU32, "U32", 4},
    {StoredDtype::kI32, "I32", 4},
    {StoredDtype::kF32, "F32", 4},
    {StoredDtype::kU64, "U64", 8},
    {StoredDtype::kI64, "I64", 8},
    {StoredDtype::kF64, "F64", 8},
}};

// kDtypes is in the order of the enum.
const DtypeInfo& Info(StoredDtype dtype) {
  return kDtypes[static_cast<int>(dtype)];
}

std::optional<StoredDtype> DtypeOf(absl::string_view name) {
  for (const DtypeInfo& info : kDtypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

// More than any library supports; limits what a hostile header allocates.
constexpr int kMaxDimensions = 64;
constexpr absl::string_view kMetadataKey = "__metadata__";

// Handles nlohmann::json's parse events and accepts only the grammar of a
// header, so that the first unexpected token ends the parse and nothing else is
// built.
class HeaderHandler {
 public:
  using Json = nlohmann::json;

  absl::Status status() const { return status_; }
  SafetensorsHeader TakeHeader() { return std::move(header_); }

  // The interface that nlohmann::json::sax_parse() requires; false ends the
  // parse.
  bool null() { return Misplaced("null"); }
  bool boolean(bool) { return Misplaced("a boolean"); }
  bool number_integer(int64_t) { return Misplaced("a negative number"); }
  bool number_float(double, const std::string&) {
    return Misplaced("a number that is not a 64-bit integer");
  }
  bool binary(Json::binary_t&) { return Misplaced("binary data"); }

  bool number_unsigned(uint64_t value) {
    if (state_ == State::kShapeItems) return AddExtent(value);
    if (state_ == State::kOffsetItems) return AddOffset(value);
    return Misplaced("a number");
  }

  bool string(std::string& value) {
    if (state_ == State::kDtype) return SetDtype(value);
    if (state_ == State::kMetadataValue) {
      header_.metadata[key_] = std::move(value);
      state_ = State::kMetadata;
      return true;
    }
    return Misplaced("a string");
  }

  bool start_object(size_t) {
    if (state_ == State::kStart) {
      state_ = State::kTop;
    } else if (state_ == State::kTensorStart) {
      state_ = State::kTensor;
    } else if (state_ == State::kMetadataStart) {
      state_ = State::kMetadata;
    } else {
      return Misplaced("an object");
    }
    return true;
  }

  bool end_object() {
    if (state_ == State::kTensor) return EndTensor();
    state_ = state_ == State::kMetadata ? State::kTop : State::kEnd;
    return true;
  }

  bool start_array(size_t) {
    if (state_ == State::kShape) {
      state_ = State::kShapeItems;
    } else if (state_ == State::kOffsets) {
      state_ = State::kOffsetItems;
    } else {
      return Misplaced("an array");
    }
    return true;
  }

  bool end_array() {
    if (state_ == State::kOffsetItems && offsets_.size() != 2) {
      return Fail(absl::StrCat("data_offsets has ", offsets_.size(),
                               " numbers; it needs 2"));
    }
    state_ = State::kTensor;
    return true;
  }

  bool key(std::string& name) {
    switch (state_) {
      case State::kTop:
        return StartEntry(name);
      case State::kTensor:
        return StartField(name);
      default:
        return StartMetadata(name);
    }
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat("malformed JSON in the header at byte ", position));
    return false;
  }

 private:
  enum class State {
    kStart,
    kTop,  // between the tensors
    kTensorStart,
    kTensor,  // between a tensor's fields
    kDtype,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetItems,
    kMetadataStart,
    kMetadata,  // between its entries
    kMetadataValue,
    kEnd,
  };

  bool Fail(absl::string_view problem) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat("tensor '", entry_.spec.name, "': ", problem));
    return false;
  }

  bool Misplaced(absl::string_view what) {
    return Fail(absl::StrCat(what, " is not allowed here"));
  }

  bool StartEntry(std::string& name) {
    entry_ = {};
    entry_.spec.name = name;
    fields_.clear();
    offsets_.clear();
    if (!names_.insert(name).second) return Fail("the name occurs twice");
    state_ = name == kMetadataKey ? State::kMetadataStart : State::kTensorStart;
    return true;
  }

  bool StartField(const std::string& name) {
    if (!fields_.insert(name).second) {
      return Fail(absl::StrCat("the field '", name, "' occurs twice"));
    }
    if (name == "dtype") {
      state_ = State::kDtype;
    } else if (name == "shape") {
      state_ = State::kShape;
    } else if (name == "data_offsets") {
      state_ = State::kOffsets;
    } else {
      return Fail(absl::StrCat("unknown field '", name, "'"));
    }
    return true;
  }

  bool StartMetadata(std::string& name) {
    key_ = std::move(name);
    if (header_.metadata.contains(key_)) {
      return Fail(absl::StrCat("the key '", key_, "' occurs twice"));
    }
    state_ = State::kMetadataValue;
    return true;
  }

  bool SetDtype(const std::string& name) {
    const std::optional<StoredDtype> dtype = DtypeOf(name);
    if (!dtype.has_value()) {
      return Fail(absl::StrCat(
          "unknown dtype '", name, "' (supported: ",
          absl::StrJoin(kDtypes, " ",
                        [](std::string* out, const DtypeInfo& info) {
                          absl::StrAppend(out, info.name);
                        }),
          ")"));
    }
    entry_.spec.dtype = *dtype;
    state_ = State::kTensor;
    return true;
  }

  bool AddExtent(uint64_t extent) {
    if (extent > std::numeric_limits<int64_t>::max()) {
      return Fail("an extent of the shape exceeds 63 bits");
    }
    if (entry_.spec.shape.size() == kMaxDimensions) {
      return Fail(absl::StrCat("more than ", kMaxDimensions, " dimensions"));
    }
    entry_.spec.shape.push_back(extent);
    return true;
  }

  bool AddOffset(uint64_t offset) {
    if (offsets_.size() == 2) {
      return Fail("data_offsets has more than 2 numbers");
    }
    offsets_.push_back(offset);
    return true;
  }

  bool EndTensor() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field)) {
        return Fail(absl::StrCat("the field '", field, "' is missing"));
      }
    }
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    if (entry_.begin > entry_.end) {
      return Fail(absl::StrCat("data_offsets [", entry_.begin, ", ", entry_.end,
                               "] run backwards"));
    }
    const absl::StatusOr<uint64_t> bytes = SizeBytes(entry_.spec);
    if (!bytes.ok()) {
      status_ = bytes.status();
      return false;
    }
    if (entry_.end - entry_.begin != *bytes) {
      return Fail(absl::StrCat("its shape needs ", *bytes,
                               " bytes; data_offsets give it ",
                               entry_.end - entry_.begin));
    }
    header_.tensors.push_back(std::move(entry_));
    state_ = State::kTop;
    return true;
  }

  State state_ = State::kStart;
  absl::Status status_;
  SafetensorsHeader header_;
  absl::flat_hash_set<std::string> names_;
  // State of the tensor that is being read.
  TensorEntry entry_;
  absl::flat_hash_set<std::string> fields_;
  std::vector<uint64_t> offsets_;
  std::string key_;  // key of the metadata entry being read
};

// Checks that the sorted tensors cover [0, data_bytes) without holes or
// overlaps.
absl::Status CheckCoverage(absl::Span<const TensorEntry> tensors,
                           uint64_t data_bytes) {
  uint64_t covered = 0;
  for (const TensorEntry& entry : tensors) {
    if (entry.begin != covered) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", entry.spec.name, "' begins at byte ", entry.begin,
          " of the data; the tensors before it end at ", covered,
          " (a hole or an overlap)"));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensors need ", covered, " bytes of data; there are ",
                     data_bytes, covered > data_bytes ? " (cut short?)" : ""));
  }
  return absl::OkStatus();
}

// `name` as a JSON string.
absl::StatusOr<std::string> Quoted(const std::string& name) {
  // The default error handler throws if the name is not UTF-8.
  const std::string quoted = DumpJson(nlohmann::json(name));
  if (ParseJson(quoted) != name) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensor name ", quoted, " is not UTF-8"));
  }
  return quoted;
}

}  // namespace

absl::string_view Name(StoredDtype dtype) { return Info(dtype).name; }

int64_t SizeBytes(StoredDtype dtype) { return Info(dtype).size_bytes; }

absl::StatusOr<uint64_t> SizeBytes(const TensorSpec& spec) {
  uint64_t bytes = SizeBytes(spec.dtype);
  for (int64_t extent : spec.shape) {
    if (extent < 0 ||
        __builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", spec.name, "': the size of shape [",
                       absl::StrJoin(spec.shape, ", "), "] is negative or ",
                       "exceeds 64 bits"));
    }
  }
  return bytes;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         uint64_t data_bytes) {
  if (json.empty() || json.front() != '{') {
    return absl::InvalidArgumentError("the header does not start with '{'");
  }
  HeaderHandler handler;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &handler)) {
    return handler.status();
  }
  SafetensorsHeader header = handler.TakeHeader();
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
            });
  RETURN_IF_ERROR(CheckCoverage(header.tensors, data_bytes));
  return header;
}

absl::StatusOr<std::string> SerializeSafetensorsHeader(
    const SafetensorsHeader& header) {
  std::vector<std::string> members;
  if (!header.metadata.empty()) {
    members.push_back(absl::StrCat(
        "\"", kMetadataKey, "\":", DumpJson(nlohmann::json(header.metadata))));
  }
  for (const TensorEntry& entry : header.tensors) {
    ASSIGN_OR_RETURN(const std::string name, Quoted(entry.spec.name));
    members.push_back(absl::StrCat(
        name, ":{\"dtype\":\"", Name(entry.spec.dtype), "\",\"shape\":[",
        absl::StrJoin(entry.spec.shape, ","), "],\"data_offsets\":[",
        entry.begin, ",", entry.end, "]}"));
  }
  std::string text = absl::StrCat("{", absl::StrJoin(members, ","), "}");
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the header of ", header.tensors.size(), " tensors has ", text.size(),
        " bytes; the format allows ", kMaxSafetensorsHeaderBytes));
  }
  return text;
}

}  // namespace tessera
