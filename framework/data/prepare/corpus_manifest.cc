#include "framework/data/prepare/corpus_manifest.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/base/json.h"
#include "framework/base/json_fields.h"
#include "framework/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

// Keeps fields in the order in which they are written.
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

SplitManifest Split(JsonFields fields) {
  return {.documents = fields.Count("documents"),
          .bytes = fields.Count("bytes"),
          .tokens = fields.Count("tokens"),
          .checksum = fields.Checksum("xxh3")};
}

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
  const nlohmann::json json = ParseJson(text);
  JsonFields root(json, "manifest");
  RETURN_IF_ERROR(root.status());
  if (root.Text("format") != kFormat) {
    root.Fail("format", absl::StrCat("'", kFormat, "'"));
    return root.status();
  }
  if (const int64_t version = root.Count("version");
      root.status().ok() && version != Manifest::kVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        "manifest: version ", version, "; this program reads version ",
        Manifest::kVersion, ": prepare the text again"));
  }
  JsonFields tokenizer = root.Object("tokenizer");
  Manifest manifest = {
      .vocab_size = tokenizer.Count("vocab_size"),
      .tokenizer_checksum = tokenizer.Checksum("xxh3"),
      .train = Split(root.Object("train")),
      .validation = Split(root.Object("validation")),
      .non_utf8_documents = root.Count("non_utf8_documents"),
      .unigram_entropy = root.Number("unigram_entropy_nats_per_token"),
  };
  const std::string kind = tokenizer.Text("kind");
  RETURN_IF_ERROR(root.status());
  ASSIGN_OR_RETURN(manifest.tokenizer, TokenizerKindFromName(kind));
  return manifest;
}

}  // namespace tessera
