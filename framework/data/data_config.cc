#include "framework/data/data_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/field_error.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/data/prepare/default_text.h"
#include "framework/data/prepare/prepare_text.h"
#include "framework/data/read/megatron_index.h"
#include "framework/data/read/permutation.h"
#include "framework/data/read/token_file.h"
#include "framework/data/read/token_sequence.h"
#include "framework/data/read/token_validation_split.h"
#include "google/protobuf/repeated_ptr_field.h"

namespace tessera {
namespace {

// Leaves room for held-out tokens after the epoch, and lets FP64 compute
// fractions of it exactly.
constexpr int64_t kMaxEpochTokens = int64_t{1} << 50;

// Limits the memory for the places where documents begin to about 1 GiB.
constexpr int64_t kMaxSyntheticDocuments = int64_t{1} << 27;

bool SeparatesDocuments(const DataConfig& config) {
  return config.documents() == DataConfig::SEPARATE;
}

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

// The end-of-text token that the config gives.
std::optional<EndOfText> GivenEndOfText(const TokenFiles& config) {
  switch (config.end_of_text_case()) {
    case TokenFiles::kDocumentsBeginWith:
      return EndOfText{config.documents_begin_with(), /*is_before=*/true};
    case TokenFiles::kDocumentsEndWith:
      return EndOfText{config.documents_end_with(), /*is_before=*/false};
    case TokenFiles::END_OF_TEXT_NOT_SET:
      break;
  }
  return std::nullopt;
}

void ValidateSets(const TokenFiles& config, Violations violations) {
  std::set<std::string> names = {"validation"};  // the held-out data's
  for (int i = 0; i < config.validation_sets_size(); ++i) {
    const TokenFiles::ValidationSet& set = config.validation_sets(i);
    const Violations inside =
        violations.In(absl::StrCat("validation_sets[", i, "]"));
    const bool plain =
        !set.name().empty() && absl::c_all_of(set.name(), [](char c) {
          return absl::ascii_isalnum(c) || absl::StrContains("._-", c);
        });
    inside.Check(plain, "name",
                 absl::StrCat("must consist of letters, digits, '.', '_' and "
                              "'-'; is '",
                              set.name(), "'"));
    inside.Check(names.insert(set.name()).second, "name",
                 absl::StrCat("must differ from those of the other sets and "
                              "from 'validation'; is '",
                              set.name(), "'"));
    inside.Check(set.files_size() > 0, "files",
                 "must name at least one token file or prepared folder");
    ValidatePaths(set.files(), "files", inside);
  }
}

void Validate(const TokenFiles& config, Violations violations) {
  violations.Check(config.train_size() > 0, "train",
                   "must name at least one token file or prepared folder");
  ValidatePaths(config.train(), "train", violations);
  ValidatePaths(config.validation(), "validation", violations);
  ValidateSets(config, violations);
  violations.Check(config.format() != TokenFiles::UNSPECIFIED, "format",
                   "must be DETECT, TESSERA, NANOGPT, LLMC or MEGATRON");
  if (const std::optional<EndOfText> end = GivenEndOfText(config)) {
    violations.Check(
        end->token >= 0,
        end->is_before ? "documents_begin_with" : "documents_end_with",
        absl::StrCat("must be the id of a token, at least 0; is ", end->token));
  }
}

void Validate(const SyntheticTokens& config, Violations violations) {
  violations.Check(
      config.epoch_tokens() >= 1 && config.epoch_tokens() <= kMaxEpochTokens,
      "epoch_tokens",
      absl::StrCat("must be in [1, 2^50]; is ", config.epoch_tokens()));
  violations.Check(
      config.successors() >= 1, "successors",
      absl::StrCat("must be at least 1; is ", config.successors()));
  const int64_t document = config.document_tokens();
  violations.Check(document >= 0 && document <= kMaxEpochTokens,
                   "document_tokens",
                   absl::StrCat("must be in [0, 2^50]; is ", document));
  violations.Check(
      document <= 0 ||
          config.epoch_tokens() / document <= kMaxSyntheticDocuments,
      "document_tokens",
      absl::StrCat("is ", document, ", which makes ",
                   config.epoch_tokens() / std::max<int64_t>(document, 1),
                   " documents of the epoch; must make at most 2^27: raise it "
                   "or lower epoch_tokens"));
}

void ValidateDocuments(const DataConfig& config, Violations violations) {
  violations.Check(config.documents() != DataConfig::UNSPECIFIED, "documents",
                   "must be JOINED or SEPARATE");
  if (SeparatesDocuments(config)) {
    violations.Check(
        !config.has_synthetic() || config.synthetic().document_tokens() != 0,
        "synthetic.document_tokens",
        "must be set to the mean length of a document, such as 512, because "
        "data.documents is SEPARATE; is 0");
    return;
  }
  constexpr absl::string_view kOnlySeparate =
      "has no effect unless data.documents is SEPARATE; set that or remove "
      "this field";
  violations.Check(!config.has_train_across_documents(),
                   "train_across_documents", kOnlySeparate);
  violations.Check(!config.token_files().has_documents_begin_with(),
                   "token_files.documents_begin_with", kOnlySeparate);
  violations.Check(!config.token_files().has_documents_end_with(),
                   "token_files.documents_end_with", kOnlySeparate);
}

// An opened source of a config.
struct Source {
  std::string name;             // "the default text", for messages
  std::string validation_name;  // the same, if validation has its own files
  TokenSplit split;
  std::vector<std::pair<std::string, std::shared_ptr<const TokenSequence>>>
      validation_sets;  // by name
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<double> unigram_entropy;
  uint64_t fingerprint = 0;
  // Hash of the tokens in files that are read only for validation.
  uint64_t validation_fingerprint = 0;
};

// Token files that are read as one sequence.
struct FileList {
  std::vector<TokenFile> files;
  uint64_t fingerprint = 0;

  // With `end_of_text`, finds the documents that it divides.
  absl::Status Add(TokenFile file, int64_t vocab_size,
                   const std::optional<EndOfText>& end_of_text) {
    RETURN_IF_ERROR(file.LimitTokens(vocab_size, end_of_text));
    ASSIGN_OR_RETURN(const uint64_t checksum, file.checksum());
    fingerprint = Mix(fingerprint, checksum);
    files.push_back(std::move(file));
    return absl::OkStatus();
  }
};

// The token that divides the documents of a folder with this tokenizer; nothing
// if they are joined.
std::optional<EndOfText> FindEndOfText(const DataConfig& data,
                                       const Tokenizer& tokenizer) {
  if (!SeparatesDocuments(data)) return std::nullopt;
  EndOfText end = {tokenizer.eos_id(), /*is_before=*/false};
  const std::vector<int32_t> begin = tokenizer.begin_ids();
  if (absl::c_linear_search(begin, tokenizer.eos_id())) {
    end.begin_tokens = static_cast<int64_t>(begin.size());
  }
  return end;
}

// The token that divides the documents of `file`; nothing if they are joined or
// the file has an index of them.
absl::StatusOr<std::optional<EndOfText>> FindEndOfText(const DataConfig& data,
                                                       const TokenFile& file,
                                                       int64_t vocab_size) {
  if (!SeparatesDocuments(data)) return std::nullopt;
  std::optional<EndOfText> found = GivenEndOfText(data.token_files());
  if (!found.has_value()) found = file.end_of_text();
  if (!found.has_value() && file.format() == TokenFileFormat::kTessera) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(),
        " does not say which token divides its documents, and data.documents "
        "is SEPARATE; set data.token_files.documents_end_with or "
        "documents_begin_with to that token, or name the folder that "
        "trainers:prepare_data wrote instead of the file"));
  }
  if (found.has_value() && found->token >= vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token ", found->token, " divides the documents of ", file.path(),
        ", but model.vocab_size is ", vocab_size,
        "; set data.token_files.documents_end_with or documents_begin_with to "
        "the token that divides them"));
  }
  return found;
}

absl::StatusOr<Source> SourceFromFolder(PreparedFolder folder, std::string name,
                                        const DataConfig& data,
                                        int64_t vocab_size) {
  RETURN_IF_ERROR(
      CheckVocabulary(*folder.tokenizer, folder.tokenizer_path, vocab_size));
  const std::optional<EndOfText> end_of_text =
      FindEndOfText(data, *folder.tokenizer);
  FileList train, validation;
  RETURN_IF_ERROR(train.Add(std::move(folder.train), vocab_size, end_of_text));
  Source source = {
      .name = std::move(name),
      .split = {.train = CreateFileSequence(std::move(train.files))},
      .tokenizer = std::move(folder.tokenizer),
      .unigram_entropy = folder.manifest.unigram_entropy,
      .fingerprint = train.fingerprint};
  if (folder.validation.has_value()) {
    RETURN_IF_ERROR(
        validation.Add(*std::move(folder.validation), vocab_size, end_of_text));
    source.validation_fingerprint = validation.fingerprint;
    source.split.validation = CreateFileSequence(std::move(validation.files));
  }
  return source;
}

absl::StatusOr<Source> OpenSource(const DefaultText& config,
                                  const DataConfig& data,
                                  const DatasetOptions& options) {
  const bool is_bytes = config.tokenizer() == DefaultText::BYTES;
  PrepareOptions prepare;
  prepare.tokenizer = is_bytes ? TokenizerKind::kBytes : TokenizerKind::kBpe;
  // The byte vocabulary has one size, so models of all sizes share a cache
  // entry.
  prepare.vocab_size = is_bytes ? kByteVocabularySize : options.vocab_size;
  prepare.vocab_size_advice =
      "raise model.vocab_size to at least that, or set "
      "data.default_text.tokenizer to BYTES";
  prepare.validation_fraction = data.validation_fraction();
  prepare.progress = options.progress;
  ASSIGN_OR_RETURN(PreparedFolder folder, OpenDefaultText(prepare));
  return SourceFromFolder(std::move(folder), "the default text", data,
                          options.vocab_size);
}

TokenFileFormat FormatFromConfig(TokenFiles::Format format) {
  switch (format) {
    case TokenFiles::TESSERA:
      return TokenFileFormat::kTessera;
    case TokenFiles::NANOGPT:
      return TokenFileFormat::kNanoGpt;
    case TokenFiles::LLMC:
      return TokenFileFormat::kLlmC;
    case TokenFiles::MEGATRON:
      return TokenFileFormat::kMegatron;
    default:
      return TokenFileFormat::kDetect;
  }
}

constexpr char kTrainField[] = "data.token_files.train";
constexpr char kValidationField[] = "data.token_files.validation";

std::string ValidationSetField(int index) {
  return absl::StrCat("data.token_files.validation_sets[", index, "].files");
}

// The paths in a config, with each shell pattern replaced by its sorted
// matches. A path that exists is not treated as a pattern.
absl::StatusOr<std::vector<std::string>> ExpandPaths(
    const google::protobuf::RepeatedPtrField<std::string>& listed,
    absl::string_view field) {
  std::vector<std::string> paths;
  for (const std::string& given : listed) {
    const std::string path = UserPath(given);
    if (FileExists(path) || path.find_first_of("*?[") == std::string::npos) {
      paths.push_back(path);
      continue;
    }
    const absl::StatusOr<std::vector<std::string>> matches = Glob(path);
    if (!matches.ok()) return FieldError(field, matches.status());
    if (matches->empty()) {
      return FieldError(field,
                        absl::NotFoundError(absl::StrCat(
                            "no file matches ", path,
                            "; name files or prepared folders that exist")));
    }
    const std::set<std::string> all(matches->begin(), matches->end());
    std::copy_if(matches->begin(), matches->end(), std::back_inserter(paths),
                 [&](const std::string& match) {
                   // NAME.idx is read with NAME.bin.
                   return !absl::EndsWith(match, ".idx") ||
                          !all.contains(MegatronTokensPath(match));
                 });
  }
  return paths;
}

// Opens the paths of token_files.train or, if not `is_train`, .validation; uses
// that split of prepared folders. Stores the folders' tokenizer, which must be
// the same for all, in *tokenizer.
absl::StatusOr<FileList> OpenPaths(const std::vector<std::string>& paths,
                                   bool is_train, const DataConfig& data,
                                   int64_t vocab_size,
                                   std::unique_ptr<Tokenizer>* tokenizer) {
  FileList list;
  for (const std::string& path : paths) {
    if (!FileExists(path + "/manifest.json")) {
      ASSIGN_OR_RETURN(
          TokenFile file,
          TokenFile::Open(path, FormatFromConfig(data.token_files().format())));
      RETURN_IF_ERROR(file.VerifyChecksum());  // a folder's is verified
      // 8 bytes for each document in a Megatron index.
      if (!SeparatesDocuments(data)) file.TakeDocumentStarts();
      ASSIGN_OR_RETURN(const std::optional<EndOfText> end_of_text,
                       FindEndOfText(data, file, vocab_size));
      RETURN_IF_ERROR(list.Add(std::move(file), vocab_size, end_of_text));
      continue;
    }
    ASSIGN_OR_RETURN(PreparedFolder folder, OpenPreparedFolder(path));
    if (!is_train && !folder.validation.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path,
          " was prepared without a validation split; prepare it with "
          "--validation_fraction above 0"));
    }
    RETURN_IF_ERROR(
        CheckVocabulary(*folder.tokenizer, folder.tokenizer_path, vocab_size));
    if (*tokenizer != nullptr &&
        (*tokenizer)->Serialize() != folder.tokenizer->Serialize()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path,
          " has a different tokenizer than the folders before it, so its token "
          "ids do not mean the same text; use folders prepared with one "
          "tokenizer"));
    }
    RETURN_IF_ERROR(list.Add(
        is_train ? std::move(folder.train) : *std::move(folder.validation),
        vocab_size, FindEndOfText(data, *folder.tokenizer)));
    // A validation set does not say what the ids of training's files mean.
    if (is_train && *tokenizer == nullptr) {
      *tokenizer = std::move(folder.tokenizer);
    }
  }
  return list;
}

// Without the further validation sets.
absl::StatusOr<Source> OpenSplits(const TokenFiles& config,
                                  const DataConfig& data,
                                  const DatasetOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<std::string> train,
                   ExpandPaths(config.train(), kTrainField));
  ASSIGN_OR_RETURN(const std::vector<std::string> validation,
                   ExpandPaths(config.validation(), kValidationField));
  const std::string name = absl::StrJoin(config.train(), ", ");
  if (train.size() == 1 && validation.empty() &&
      FileExists(train[0] + "/manifest.json")) {
    absl::StatusOr<PreparedFolder> folder = OpenPreparedFolder(train[0]);
    if (!folder.ok()) return FieldError(kTrainField, folder.status());
    absl::StatusOr<Source> source =
        SourceFromFolder(*std::move(folder), name, data, options.vocab_size);
    if (!source.ok()) return FieldError(kTrainField, source.status());
    return source;
  }
  Source source = {.name = name};
  absl::StatusOr<FileList> list = OpenPaths(
      train, /*is_train=*/true, data, options.vocab_size, &source.tokenizer);
  if (!list.ok()) return FieldError(kTrainField, list.status());
  source.fingerprint = list->fingerprint;
  source.split.train = CreateFileSequence(std::move(list->files));
  if (validation.empty()) {
    source.split =
        HoldOutLastTokens(source.split.train, data.validation_fraction());
    source.fingerprint = Mix(source.fingerprint, source.split.train->tokens());
    return source;
  }
  absl::StatusOr<FileList> held_out =
      OpenPaths(validation, /*is_train=*/false, data, options.vocab_size,
                &source.tokenizer);
  if (!held_out.ok()) return FieldError(kValidationField, held_out.status());
  source.validation_name = absl::StrJoin(config.validation(), ", ");
  source.validation_fingerprint = held_out->fingerprint;
  source.split.validation = CreateFileSequence(std::move(held_out->files));
  return source;
}

absl::StatusOr<Source> OpenSource(const TokenFiles& config,
                                  const DataConfig& data,
                                  const DatasetOptions& options) {
  ASSIGN_OR_RETURN(Source source, OpenSplits(config, data, options));
  for (int i = 0; i < config.validation_sets_size(); ++i) {
    const TokenFiles::ValidationSet& set = config.validation_sets(i);
    const std::string field = ValidationSetField(i);
    ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                     ExpandPaths(set.files(), field));
    absl::StatusOr<FileList> list = OpenPaths(
        paths, /*is_train=*/false, data, options.vocab_size, &source.tokenizer);
    if (!list.ok()) return FieldError(field, list.status());
    source.validation_fingerprint =
        Mix(source.validation_fingerprint, list->fingerprint);
    source.validation_sets.emplace_back(
        set.name(), CreateFileSequence(std::move(list->files)));
  }
  return source;
}

absl::StatusOr<Source> OpenSource(const SyntheticTokens& config,
                                  const DataConfig& data,
                                  const DatasetOptions& options) {
  Source source = {.name = "synthetic tokens"};
  source.unigram_entropy = std::log(static_cast<double>(options.vocab_size));
  source.fingerprint = Mix(Mix(options.seed, config.epoch_tokens()),
                           Mix(options.vocab_size, config.successors()));
  if (config.document_tokens() > 0) {
    source.fingerprint = Mix(source.fingerprint, config.document_tokens());
  }
  // Validation uses additional tokens after those of the epoch, at least one
  // window: the same chain, but never trained on.
  auto held_out = static_cast<int64_t>(std::ceil(
      data.validation_fraction() * static_cast<double>(config.epoch_tokens())));
  if (held_out > 0) held_out = std::max(held_out, options.context_length + 1);
  source.split = SplitTokensAt(
      CreateSyntheticSequence({.tokens = config.epoch_tokens() + held_out,
                               .vocab_size = options.vocab_size,
                               .successors = config.successors(),
                               .seed = options.seed,
                               .document_tokens = config.document_tokens()}),
      config.epoch_tokens());
  return source;
}

absl::StatusOr<Source> OpenSource(const DataConfig& config,
                                  const DatasetOptions& options) {
  switch (config.source_case()) {
    case DataConfig::kDefaultText:
      return OpenSource(config.default_text(), config, options);
    case DataConfig::kTokenFiles:
      return OpenSource(config.token_files(), config, options);
    case DataConfig::kSynthetic:
      return OpenSource(config.synthetic(), config, options);
    case DataConfig::SOURCE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "data has no source; set default_text, token_files or synthetic");
}

absl::StatusOr<std::unique_ptr<DataSource>> OpenTokens(
    std::shared_ptr<const TokenSequence> tokens, absl::string_view what,
    bool shuffle, const DataConfig& config, const DatasetOptions& options) {
  DataSource::Options source = {
      .context_length = options.context_length,
      .vocab_size = options.vocab_size,
      .shuffle = shuffle,
      .seed = options.seed,
      .separate_documents = SeparatesDocuments(config),
      .train_across_documents = config.train_across_documents(),
      .description = absl::StrCat(what, ", ", tokens->tokens(), " tokens")};
  if (source.separate_documents) {
    absl::StrAppend(&source.description, " in ", tokens->documents().size() + 1,
                    " documents");
  }
  return DataSource::Create(std::move(tokens), std::move(source));
}

// An error names the field with the files, if validation has its own.
absl::Status OpenValidation(const Source& source, const DataConfig& config,
                            const DatasetOptions& options, Dataset* dataset) {
  if (source.split.validation != nullptr) {
    const bool has_files = !source.validation_name.empty();
    absl::StatusOr<std::unique_ptr<DataSource>> opened = OpenTokens(
        source.split.validation,
        absl::StrCat("validation split of ",
                     has_files ? source.validation_name : source.name),
        /*shuffle=*/false, config, options);
    if (!opened.ok()) {
      return has_files ? FieldError(kValidationField, opened.status())
                       : opened.status();
    }
    dataset->validation = *std::move(opened);
  }
  for (const auto& [name, tokens] : source.validation_sets) {
    absl::StatusOr<std::unique_ptr<DataSource>> opened =
        OpenTokens(tokens, absl::StrCat("validation set ", name),
                   /*shuffle=*/false, config, options);
    if (!opened.ok()) {
      return FieldError(
          ValidationSetField(static_cast<int>(dataset->validation_sets.size())),
          opened.status());
    }
    dataset->validation_sets.push_back({name, *std::move(opened)});
  }
  return absl::OkStatus();
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
  ValidateDocuments(config, violations);
  const double fraction = config.validation_fraction();
  // This form also rejects NaN.
  violations.Check(fraction >= 0 && fraction <= 0.5, "validation_fraction",
                   absl::StrCat("must be in [0, 0.5]; is ", fraction));
}

absl::StatusOr<Dataset> CreateDataset(const DataConfig& config,
                                      const DatasetOptions& options) {
  ASSIGN_OR_RETURN(Source source, OpenSource(config, options));
  if (const int64_t tokens = source.split.train->tokens();
      tokens <= options.context_length) {
    const std::string shorter_context =
        tokens < kMinSplitTokens
            ? ""
            : absl::StrCat(", or set model.context_length to at most ",
                           tokens - 1);
    return absl::InvalidArgumentError(absl::StrCat(
        "the train split of ", source.name, " has ", tokens,
        " tokens, less than one training sequence, which takes ",
        options.context_length + 1,
        " (model.context_length + 1); train on more tokens", shorter_context));
  }
  Dataset dataset;
  ASSIGN_OR_RETURN(dataset.train,
                   OpenTokens(source.split.train,
                              absl::StrCat("train split of ", source.name),
                              config.shuffle(), config, options));
  RETURN_IF_ERROR(OpenValidation(source, config, options, &dataset));
  dataset.tokenizer = std::move(source.tokenizer);
  dataset.unigram_entropy = source.unigram_entropy;
  dataset.fingerprint = source.fingerprint;
  dataset.validation_fingerprint = source.validation_fingerprint;
  if (SeparatesDocuments(config)) {
    dataset.fingerprint =
        Mix(source.fingerprint, source.split.train->documents().Hash());
  }
  return dataset;
}

}  // namespace tessera
