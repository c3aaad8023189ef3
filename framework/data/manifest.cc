#include "framework/data/manifest.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

// Keeps the fields in the order in which they are written.
using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "tessera prepared text";

// JSON numbers lose precision above 2^53.
std::string ToHex(uint64_t checksum) {
  return absl::StrFormat("%016x", checksum);
}

Json SplitToJson(const SplitManifest& split) {
  return {{"documents", split.documents},
          {"bytes", split.bytes},
          {"tokens", split.tokens},
          {"xxh3", ToHex(split.checksum)}};
}

// Reads fields of one JSON object, and keeps the first thing that is wrong.
class Fields {
 public:
  Fields(const Json& object, std::string path)
      : object_(object), path_(std::move(path)) {}

  int64_t Integer(const char* name) {
    const Json* field = Find(name);
    if (field != nullptr && field->is_number_integer()) {
      return field->get<int64_t>();
    }
    return Fail(name, "an integer"), 0;
  }
  double Real(const char* name) {
    const Json* field = Find(name);
    if (field != nullptr && field->is_number()) return field->get<double>();
    return Fail(name, "a number"), 0.0;
  }
  std::string Text(const char* name) {
    const Json* field = Find(name);
    if (field != nullptr && field->is_string()) return *field;
    return Fail(name, "a string"), "";
  }
  uint64_t Checksum(const char* name) {
    uint64_t checksum = 0;
    const std::string hex = Text(name);
    if (hex.size() != 16 || !absl::SimpleHexAtoi(hex, &checksum)) {
      Fail(name, "16 hexadecimal digits");
    }
    return checksum;
  }
  SplitManifest Split(const char* name) {
    const Json* field = Find(name);
    if (field == nullptr || !field->is_object()) {
      return Fail(name, "an object"), SplitManifest();
    }
    Fields inner(*field, absl::StrCat(path_, name, "."));
    const SplitManifest split = {
        .documents = inner.Integer("documents"),
        .bytes = inner.Integer("bytes"),
        .tokens = inner.Integer("tokens"),
        .checksum = inner.Checksum("xxh3"),
    };
    status_.Update(inner.status());
    return split;
  }
  const absl::Status& status() const { return status_; }

 private:
  const Json* Find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }
  void Fail(const char* name, absl::string_view expected) {
    status_.Update(absl::InvalidArgumentError(
        absl::StrCat("manifest: ", path_, name, " must be ", expected)));
  }

  const Json& object_;
  const std::string path_;
  absl::Status status_;
};

}  // namespace

std::string ToJson(const Manifest& manifest) {
  const Json json = {
      {"format", kFormat},
      {"version", Manifest::kVersion},
      {"tokenizer",
       {{"kind", std::string(Name(manifest.tokenizer))},
        {"vocab_size", manifest.vocab_size},
        {"xxh3", ToHex(manifest.tokenizer_checksum)}}},
      {"train", SplitToJson(manifest.train)},
      {"validation", SplitToJson(manifest.validation)},
      {"non_utf8_documents", manifest.non_utf8_documents},
      {"unigram_entropy_nats_per_token", manifest.unigram_entropy},
  };
  return json.dump(2) + "\n";
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr,
                                /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("manifest: not a JSON object");
  }
  Fields root(json, "");
  if (root.Text("format") != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("manifest: format must be '", kFormat, "'"));
  }
  if (const int64_t version = root.Integer("version");
      version != Manifest::kVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        "manifest: version ", version, "; this program reads version ",
        Manifest::kVersion, ": prepare the text again"));
  }
  const auto found = json.find("tokenizer");
  if (found == json.end() || !found->is_object()) {
    return absl::InvalidArgumentError("manifest: tokenizer must be an object");
  }
  Fields tokenizer(*found, "tokenizer.");
  Manifest manifest = {
      .vocab_size = tokenizer.Integer("vocab_size"),
      .tokenizer_checksum = tokenizer.Checksum("xxh3"),
      .train = root.Split("train"),
      .validation = root.Split("validation"),
      .non_utf8_documents = root.Integer("non_utf8_documents"),
      .unigram_entropy = root.Real("unigram_entropy_nats_per_token"),
  };
  const std::string kind = tokenizer.Text("kind");
  RETURN_IF_ERROR(root.status());
  RETURN_IF_ERROR(tokenizer.status());
  ASSIGN_OR_RETURN(manifest.tokenizer, TokenizerKindFromName(kind));
  return manifest;
}

}  // namespace tessera
