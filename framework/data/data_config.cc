#include "framework/data/data_config.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "google/protobuf/repeated_ptr_field.h"

namespace tessera {
namespace {

// Leaves room for what is held out behind the epoch, and for shares of it to be
// computed exactly in FP64.
constexpr int64_t kMaxEpochTokens = int64_t{1} << 50;

void ValidatePaths(const google::protobuf::RepeatedPtrField<std::string>& paths,
                   absl::string_view field, Violations violations) {
  for (int i = 0; i < paths.size(); ++i) {
    violations.Check(!paths[i].empty(), absl::StrCat(field, "[", i, "]"),
                     "must name a file or a prepared folder; is empty");
  }
}

void Validate(const DefaultText& config, Violations violations) {
  violations.Check(config.tokenizer() != DefaultText::UNSPECIFIED, "tokenizer",
                   "must be BPE or BYTES");
}

void Validate(const TokenFiles& config, Violations violations) {
  violations.Check(config.train_size() > 0, "train",
                   "must name at least one token file or prepared folder");
  ValidatePaths(config.train(), "train", violations);
  ValidatePaths(config.validation(), "validation", violations);
  violations.Check(config.format() != TokenFiles::UNSPECIFIED, "format",
                   "must be DETECT, TESSERA, NANOGPT or LLMC");
}

void Validate(const SyntheticTokens& config, Violations violations) {
  violations.Check(
      config.epoch_tokens() >= 1 && config.epoch_tokens() <= kMaxEpochTokens,
      "epoch_tokens",
      absl::StrCat("must be in [1, 2^50]; is ", config.epoch_tokens()));
  violations.Check(
      config.successors() >= 1, "successors",
      absl::StrCat("must be at least 1; is ", config.successors()));
}

}  // namespace

void Validate(const DataConfig& config, Violations violations) {
  switch (config.source_case()) {
    case DataConfig::kDefaultText:
      Validate(config.default_text(), violations.In("default_text"));
      break;
    case DataConfig::kTokenFiles:
      Validate(config.token_files(), violations.In("token_files"));
      break;
    case DataConfig::kSynthetic:
      Validate(config.synthetic(), violations.In("synthetic"));
      break;
    case DataConfig::SOURCE_NOT_SET:
      violations.Add("source",
                     "one of default_text, token_files, synthetic must be set");
      break;
  }
  const double fraction = config.validation_fraction();
  // Written so that NaN fails too.
  violations.Check(fraction >= 0 && fraction <= 0.5, "validation_fraction",
                   absl::StrCat("must be in [0, 0.5]; is ", fraction));
}

}  // namespace tessera
