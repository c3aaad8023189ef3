#include "framework/checkpoint/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/memory/memory.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "framework/base/file.h"
#include "framework/base/json.h"
#include "framework/base/mapped_file.h"
#include "framework/base/status_macros.h"
#include "xxhash.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kFormat = "tessera-checkpoint";
constexpr int kFormatVersion = 1;

constexpr absl::string_view kTensorFiles[] = {kModelFile, kOptimizerFile,
                                              kEmaFile};

// Keys of the manifest.
constexpr char kBytes[] = "bytes";
constexpr char kChecksum[] = "xxh3_64";
constexpr char kHeaderChecksum[] = "header_xxh3_64";
constexpr char kTensorChecksums[] = "tensors";

std::string Hex(uint64_t checksum) {
  return absl::StrFormat("%016x", checksum);
}

std::string ChecksumOf(absl::string_view bytes) {
  return Hex(XXH3_64bits(bytes.data(), bytes.size()));
}

std::string Dump(const Json& json) { return DumpJson(json, 2) + "\n"; }

// Checks the manifest's checksum of itself: of everything else in it, as
// written by Dump(). Later versions must keep this, so that damage can be
// distinguished from an unknown version.
absl::Status CheckOwnChecksum(const std::string& path, Json* manifest) {
  const auto found = manifest->find(kChecksum);
  if (found == manifest->end()) return absl::OkStatus();  // an older manifest
  const Json checksum = *found;
  manifest->erase(found);
  if (checksum == ChecksumOf(Dump(*manifest))) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path, " is damaged (its own checksum)"));
}

// The status for opening a file that a checkpoint must have: if the file is
// missing or malformed, the checkpoint is damaged.
absl::Status OpenStatus(const absl::Status& status) {
  if (absl::IsNotFound(status) || absl::IsInvalidArgument(status)) {
    return absl::DataLossError(status.message());
  }
  return status;
}

// Files of a checkpoint have plain names, so a manifest cannot point elsewhere.
bool IsPlainName(absl::string_view name) {
  return !name.empty() && name[0] != '.' &&
         name.find('/') == absl::string_view::npos &&
         name.find('\0') == absl::string_view::npos;
}

bool IsTensorFile(absl::string_view name) {
  constexpr absl::string_view kSuffix = ".safetensors";
  return name.size() > kSuffix.size() &&
         name.substr(name.size() - kSuffix.size()) == kSuffix;
}

// The member with that name and type; null if there is none.
const Json* Member(const Json& object, const char* name, Json::value_t type) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found != object.end() && found->type() == type ? &*found : nullptr;
}

bool HasText(const Json& object, const char* name, absl::string_view text) {
  const Json* member = Member(object, name, Json::value_t::string);
  return member != nullptr && member->get_ref<const std::string&>() == text;
}

absl::Status CheckSize(const std::string& path, uint64_t bytes,
                       const Json& expected) {
  const Json* size = Member(expected, kBytes, Json::value_t::number_unsigned);
  if (size == nullptr || size->get<uint64_t>() != bytes) {
    return absl::DataLossError(absl::StrCat(
        path, " has ", bytes, " bytes; the manifest says ",
        size == nullptr ? "nothing" : absl::StrCat(size->get<uint64_t>())));
  }
  return absl::OkStatus();
}

// The index of the first tensor whose bytes do not have the checksum of that
// name, or the number of tensors. Reads large files with several threads,
// because one takes longer than the disk.
int64_t FirstDamaged(const SafetensorsFile& file, const Json& checksums) {
  constexpr uint64_t kBytesPerThread = 16 << 20, kMostThreads = 8;
  std::atomic<int64_t> next = 0, first = file.tensors().size();
  const auto check = [&] {
    for (int64_t i; (i = next++) < first;) {
      const TensorEntry& entry = file.tensors()[i];
      if (HasText(checksums, entry.spec.name.c_str(),
                  ChecksumOf(file.Bytes(entry)))) {
        continue;
      }
      int64_t earlier = first;
      while (i < earlier && !first.compare_exchange_weak(earlier, i)) {
      }
    }
  };
  const uint64_t threads =
      std::min({file.size_bytes() / kBytesPerThread, kMostThreads,
                uint64_t{std::thread::hardware_concurrency()}});
  std::vector<std::future<void>> others;
  for (uint64_t t = 1; t < threads; ++t) {
    others.push_back(std::async(std::launch::async, check));
  }
  check();
  for (std::future<void>& other : others) other.get();
  return first;
}

// Checks everything but the tensors' bytes.
absl::Status CheckHeader(const SafetensorsFile& file, const Json& expected) {
  const std::string& path = file.path();
  RETURN_IF_ERROR(CheckSize(path, file.size_bytes(), expected));
  if (!HasText(expected, kHeaderChecksum, ChecksumOf(file.header_bytes()))) {
    return absl::DataLossError(
        absl::StrCat(path, ": the header is damaged (checksum)"));
  }
  const Json* checksums =
      Member(expected, kTensorChecksums, Json::value_t::object);
  if (checksums == nullptr || checksums->size() != file.tensors().size()) {
    return absl::DataLossError(
        absl::StrCat(path, ": the manifest does not list its tensors"));
  }
  return absl::OkStatus();
}

// CheckHeader() must be OK.
absl::Status CheckBytes(const SafetensorsFile& file, const Json& expected) {
  const int64_t damaged = FirstDamaged(file, expected[kTensorChecksums]);
  if (damaged == file.tensors().size()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(file.path(), ": tensor '",
                                          file.tensors()[damaged].spec.name,
                                          "' is damaged (checksum)"));
}

// The tensor files of the manifest's entries that `share` verifies.
std::set<std::string> FilesOf(const VerifiedShare& share, const Json& files) {
  std::vector<std::string> names;
  std::vector<uint64_t> sizes;
  for (const auto& [name, entry] : files.items()) {
    if (!IsTensorFile(name)) continue;
    const Json* size = Member(entry, kBytes, Json::value_t::number_unsigned);
    names.push_back(name);
    sizes.push_back(size == nullptr ? 0 : size->get<uint64_t>());
  }
  const std::vector<int> parties = ShareFiles(sizes, share.count);
  // Ranks arrive together where an older version has written one large file:
  // each verifies everything.
  const bool large = absl::c_any_of(
      sizes, [](uint64_t size) { return size > 2 * kMaxTensorFileBytes; });
  std::set<std::string> own;
  for (size_t i = 0; i < names.size(); ++i) {
    if (large || parties[i] == share.index) own.insert(names[i]);
  }
  return own;
}

}  // namespace

std::string CheckpointName(int64_t step) {
  return absl::StrFormat("step_%08d", step);
}

std::optional<int64_t> StepOfCheckpointName(absl::string_view name) {
  absl::string_view digits = name;
  int64_t step;
  if (absl::ConsumePrefix(&digits, "step_") &&
      absl::SimpleAtoi(digits, &step) && name == CheckpointName(step)) {
    return step;
  }
  return std::nullopt;
}

CheckpointWriter::CheckpointWriter(std::string directory, int64_t step,
                                   WritePointHook hook,
                                   CheckpointWriters writers)
    : directory_(std::move(directory)),
      step_(step),
      hook_(std::move(hook)),
      writers_(std::move(writers)),
      temporary_(absl::StrCat(directory_, "/", kTemporaryPrefix,
                              writers_.ranks.size() > 1 ? "shared-" : "",
                              CheckpointName(step))),
      files_(Json::object()) {}

CheckpointWriter::~CheckpointWriter() {
  if (committed_ || !writers_.leads()) return;
  // Renamed first, so that other ranks create no files in it any more.
  const std::string discarded = absl::StrCat(
      directory_, "/", kTemporaryPrefix, "discarded-", CheckpointName(step_));
  RemoveTree(discarded).IgnoreError();
  if (!RenamePath(temporary_, discarded, nullptr).ok()) return;
  RemoveTree(discarded).IgnoreError();
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Begin(
    const std::string& directory, int64_t step, WritePointHook hook,
    CheckpointWriters writers) {
  if (step < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a checkpoint's step must be >= 0; is ", step));
  }
  auto writer = absl::WrapUnique(new CheckpointWriter(
      directory, step, std::move(hook), std::move(writers)));
  RETURN_IF_ERROR(writer->writers_.leads() ? writer->MakeFolder()
                                           : writer->AwaitFolder());
  return writer;
}

std::string CheckpointWriter::folder() const {
  return absl::StrCat(directory_, "/", CheckpointName(step_));
}

absl::Status CheckpointWriter::MakeFolder() {
  if (FileExists(folder())) {
    const absl::Status there = Checkpoint::Open(folder()).status();
    if (there.ok()) {
      return absl::AlreadyExistsError(absl::StrCat(
          folder(),
          " is a complete checkpoint; use another folder for this run, "
          "or move it away"));
    }
    if (!IsDamagedOrAbsent(there)) return there;
  }
  RETURN_IF_ERROR(MakeDirectory(directory_, hook_));
  // Not directory_ + "/..", which follows a link to a folder elsewhere.
  RETURN_IF_ERROR(SyncDirectory(DirectoryOf(directory_), hook_));
  RETURN_IF_ERROR(RemoveTree(temporary_, hook_));
  return MakeDirectory(temporary_, hook_);
}

absl::Status CheckpointWriter::AwaitFolder() {
  return AwaitRank(
      writers_, [this] { return FileExists(temporary_); },
      absl::StrCat("rank ", writers_.rank(), " does not see ", temporary_,
                   ", which rank ", writers_.leader(),
                   " makes, and a rank has ended; ranks that write a "
                   "checkpoint together need a folder that all of them see"));
}

absl::StatusOr<SafetensorsWriter*> CheckpointWriter::AddTensorFile(
    absl::string_view name, std::vector<TensorSpec> tensors) {
  if (!IsPlainName(name) || !IsTensorFile(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is not a plain name in .safetensors"));
  }
  // PyTorch's loaders require this.
  const SafetensorsMetadata metadata = {{"format", "pt"}};
  ASSIGN_OR_RETURN(
      std::unique_ptr<SafetensorsWriter> file,
      SafetensorsWriter::Create(absl::StrCat(temporary_, "/", name),
                                std::move(tensors), metadata, hook_));
  return tensor_files_.insert_or_assign(std::string(name), std::move(file))
      .first->second.get();
}

absl::Status CheckpointWriter::AddText(absl::string_view name,
                                       absl::string_view content) {
  if (!IsPlainName(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is not a plain file name"));
  }
  RETURN_IF_ERROR(
      WriteDurably(absl::StrCat(temporary_, "/", name), content, hook_));
  files_[std::string(name)] = {{kBytes, content.size()},
                               {kChecksum, ChecksumOf(content)}};
  return absl::OkStatus();
}

absl::Status CheckpointWriter::AddTensorFilesToManifest() {
  for (const auto& [name, file] : tensor_files_) {
    if (!file->finished()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "checkpoint of step ", step_, ": ", name, " is not finished"));
    }
    Json checksums = Json::object();
    for (int64_t i = 0; i < file->tensors().size(); ++i) {
      checksums[file->tensors()[i].name] = Hex(file->checksums()[i]);
    }
    files_[name] = {{kBytes, file->size_bytes()},
                    {kHeaderChecksum, Hex(file->header_checksum())},
                    {kTensorChecksums, std::move(checksums)}};
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::AwaitParts() {
  for (const int rank : writers_.ranks) {
    if (rank == writers_.leader()) continue;
    ASSIGN_OR_RETURN(const Json files,
                     AwaitPart(temporary_, rank, writers_, hook_));
    files_.update(files);
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::VerifyOwn() const {
  for (const auto& [name, written] : tensor_files_) {
    const absl::StatusOr<std::unique_ptr<SafetensorsFile>> file =
        SafetensorsFile::Open(absl::StrCat(temporary_, "/", name));
    RETURN_IF_ERROR(OpenStatus(file.status()));
    RETURN_IF_ERROR(CheckHeader(**file, files_[name]));
    RETURN_IF_ERROR(CheckBytes(**file, files_[name]));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointWriter::Finish(absl::Status written) {
  if (written.ok()) written = AddTensorFilesToManifest();
  if (written.ok()) written = SyncDirectory(temporary_, hook_);
  if (written.ok()) written = VerifyOwn();
  if (written.ok()) {
    written = LeavePart(temporary_, writers_.rank(), files_, hook_);
  }
  if (!written.ok()) return ReportFailure(written);
  AwaitLeader();
  return folder();
}

void CheckpointWriter::AwaitLeader() const {
  AwaitRank(
      writers_, [this] { return !FileExists(temporary_); }, "")
      .IgnoreError();
}

absl::Status CheckpointWriter::ReportFailure(const absl::Status& why) {
  if (!FileExists(temporary_)) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", writers_.leader(), " has discarded the checkpoint of step ",
        step_, "; its output says why"));
  }
  std::vector<std::string> paths;
  for (const auto& [name, file] : tensor_files_) {
    paths.push_back(absl::StrCat(temporary_, "/", name));
  }
  tensor_files_.clear();
  if (LeaveFailure(temporary_, writers_.rank(), paths, why, hook_).ok()) {
    AwaitLeader();
  }
  return why;
}

absl::StatusOr<std::string> CheckpointWriter::Commit(
    const Json& state, absl::string_view config_text) {
  if (committed_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the checkpoint of step ", step_, " is already committed"));
  }
  RETURN_IF_ERROR(AddTensorFilesToManifest());
  RETURN_IF_ERROR(AwaitParts());
  RETURN_IF_ERROR(AddText(kStateFile, Dump(state)));
  RETURN_IF_ERROR(AddText(kConfigFile, config_text));
  Json manifest = {{"format", std::string(kFormat)},
                   {"version", kFormatVersion},
                   {"step", step_},
                   {"files", files_}};
  manifest[kChecksum] = ChecksumOf(Dump(manifest));
  RETURN_IF_ERROR(WriteDurably(absl::StrCat(temporary_, "/", kManifestFile),
                               Dump(manifest), hook_));
  RETURN_IF_ERROR(SyncDirectory(temporary_, hook_));
  // The other ranks have verified their files.
  RETURN_IF_ERROR(
      Checkpoint::OpenVerifying(temporary_, Checkpoint::Part::kEverything,
                                [this](const Json&) {
                                  std::set<std::string> own;
                                  for (const auto& file : tensor_files_) {
                                    own.insert(file.first);
                                  }
                                  return own;
                                })
          .status());
  RETURN_IF_ERROR(Publish());
  return folder();
}

absl::Status CheckpointWriter::Publish() {
  const std::string folder = this->folder();
  // Begin() has checked that an existing checkpoint is damaged.
  const std::string damaged = absl::StrCat(directory_, "/", kTemporaryPrefix,
                                           "damaged-", CheckpointName(step_));
  if (FileExists(folder)) {
    RETURN_IF_ERROR(RemoveTree(damaged, hook_));
    RETURN_IF_ERROR(RenamePath(folder, damaged, hook_));
  }
  RETURN_IF_ERROR(RenamePath(temporary_, folder, hook_));
  committed_ = true;
  RETURN_IF_ERROR(SyncDirectory(directory_, hook_));
  return RemoveTree(damaged, hook_);
}

bool IsDamagedOrAbsent(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status);
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(
    const std::string& folder, Part part, const VerifiedShare& share) {
  return OpenVerifying(folder, part, [&share](const Json& files) {
    return FilesOf(share, files);
  });
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::OpenVerifying(
    const std::string& folder, Part part,
    absl::FunctionRef<std::set<std::string>(const Json&)> verified) {
  auto checkpoint = absl::WrapUnique(new Checkpoint());
  checkpoint->folder_ = folder;
  RETURN_IF_ERROR(checkpoint->ReadManifest());
  checkpoint->verified_ = verified(checkpoint->files_);
  if (part != Part::kEverything) {
    RETURN_IF_ERROR(checkpoint->ReadModel(part));
    return checkpoint;
  }
  for (const auto& [name, expected] : checkpoint->files_.items()) {
    RETURN_IF_ERROR(checkpoint->Read(name, &expected));
  }
  for (const absl::string_view name : kTensorFiles) {
    if (!checkpoint->ListsTensors(name)) continue;
    RETURN_IF_ERROR(checkpoint->ReadStored(name, name));
  }
  return checkpoint;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::OpenModelFolder(
    const std::string& folder, Part part) {
  const auto has = [&](absl::string_view name) {
    return FileExists(absl::StrCat(folder, "/", name));
  };
  const bool has_model = has(kModelFile) || has(IndexName(kModelFile));
  if (!has_model || !has(kConfigFile)) {
    return absl::NotFoundError(absl::StrCat(
        folder, " has no ", has_model ? kConfigFile : kModelFile,
        "; a model's folder needs ", kModelFile, " (or ", IndexName(kModelFile),
        " and its files) and ", kConfigFile, " of a checkpoint, and its ",
        kTokenizerFile, " for text"));
  }
  auto checkpoint = absl::WrapUnique(new Checkpoint());
  checkpoint->folder_ = folder;
  RETURN_IF_ERROR(checkpoint->ReadModel(part));
  return checkpoint;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::OpenForeign(
    const std::string& folder, ForeignConfig config,
    absl::FunctionRef<absl::StatusOr<StoredTensors>(const StoredTensors&)>
        rename) {
  auto checkpoint = absl::WrapUnique(new Checkpoint());
  checkpoint->folder_ = folder;
  checkpoint->config_file_ = std::move(config.file);
  checkpoint->config_text_ = std::move(config.text);
  if (!checkpoint->ListsTensors(kModelFile)) {
    return absl::NotFoundError(absl::StrCat(folder, " has neither ", kModelFile,
                                            " nor ", IndexName(kModelFile)));
  }
  if (FileExists(absl::StrCat(folder, "/", kTokenizerFile))) {
    RETURN_IF_ERROR(checkpoint->ReadText(std::string(kTokenizerFile), nullptr));
  }
  RETURN_IF_ERROR(checkpoint->ReadStored(kModelFile, kModelFile));
  StoredTensors& stored = checkpoint->stored_.find(kModelFile)->second;
  ASSIGN_OR_RETURN(stored, rename(stored));
  return checkpoint;
}

absl::Status Checkpoint::ReadManifest() {
  const std::string path = absl::StrCat(folder_, "/", kManifestFile);
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (absl::IsInvalidArgument(file.status())) return OpenStatus(file.status());
  RETURN_IF_ERROR(file.status());
  Json manifest = ParseJson(file->bytes());
  if (!manifest.is_object()) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: not JSON"));
  }
  RETURN_IF_ERROR(CheckOwnChecksum(path, &manifest));
  if (!HasText(manifest, "format", kFormat)) {
    return absl::DataLossError(
        absl::StrCat(path,
                     " is not the manifest of a checkpoint; name a "
                     "checkpoint or the folder of a run"));
  }
  const Json* version =
      Member(manifest, "version", Json::value_t::number_unsigned);
  if (version == nullptr || *version != kFormatVersion) {
    return absl::UnimplementedError(
        absl::StrCat(path, " has format version ",
                     version == nullptr ? "none" : version->dump(),
                     "; this program reads version ", kFormatVersion));
  }
  const Json* step = Member(manifest, "step", Json::value_t::number_unsigned);
  const Json* files = Member(manifest, "files", Json::value_t::object);
  constexpr int kFields = 4;  // those above
  if (step == nullptr || files == nullptr || manifest.size() != kFields) {
    return absl::DataLossError(absl::StrCat(
        path,
        " is damaged: step or files are missing, or it has other fields"));
  }
  for (absl::string_view required : {kStateFile, kConfigFile}) {
    if (!files->contains(std::string(required))) {
      return absl::DataLossError(
          absl::StrCat(path, " does not list ", required));
    }
  }
  files_ = *files;
  return SetStep(path, step->get<uint64_t>());
}

absl::Status Checkpoint::SetStep(const std::string& path, uint64_t step) {
  absl::string_view name = folder_;
  while (absl::ConsumeSuffix(&name, "/")) {
  }
  name.remove_prefix(name.rfind('/') + 1);  // npos + 1 is 0
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if (step > kMost ||
      StepOfCheckpointName(name).value_or(static_cast<int64_t>(step)) != step) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: its step is ",
                                            step, ", its folder is ", name));
  }
  step_ = static_cast<int64_t>(step);
  return absl::OkStatus();
}

bool Checkpoint::Lists(absl::string_view name) const {
  return files_.is_null() ? FileExists(absl::StrCat(folder_, "/", name))
                          : files_.contains(std::string(name));
}

bool Checkpoint::ListsTensors(absl::string_view name) const {
  return Lists(name) || Lists(IndexName(name));
}

absl::Status Checkpoint::ReadListed(const std::string& name) {
  if (files_.is_null()) return Read(name, nullptr);
  if (files_.contains(name)) return Read(name, &files_[name]);
  return absl::DataLossError(
      absl::StrCat(folder_, "/", kManifestFile, " does not list ", name));
}

absl::Status Checkpoint::ReadStored(absl::string_view name,
                                    absl::string_view as) {
  const auto read = [this](const std::string& file) {
    return tensor_files_.contains(file) ? absl::OkStatus() : ReadListed(file);
  };
  const std::string index = IndexName(name);
  if (Lists(name) || !Lists(index)) {
    RETURN_IF_ERROR(read(std::string(name)));
    const auto file = tensor_files_.find(name);
    stored_.emplace(as, StoredTensors(*file->second));
    return absl::OkStatus();
  }
  const std::string path = absl::StrCat(folder_, "/", index);
  if (!texts_.contains(index)) RETURN_IF_ERROR(ReadListed(index));
  ASSIGN_OR_RETURN(const auto weight_map, ParseIndex(path, texts_[index]));
  std::map<std::string, const SafetensorsFile*> files;
  for (const auto& [tensor, file] : weight_map) {
    if (files.contains(file)) continue;
    RETURN_IF_ERROR(read(file));
    const auto found = tensor_files_.find(file);
    if (found == tensor_files_.end()) {
      return absl::DataLossError(absl::StrCat(
          path, ": ", file, " is not the name of a .safetensors file"));
    }
    files[file] = found->second.get();
  }
  ASSIGN_OR_RETURN(StoredTensors stored,
                   StoredTensors::FromIndex(path, weight_map, files));
  stored_.emplace(as, std::move(stored));
  return absl::OkStatus();
}

absl::Status Checkpoint::ReadModel(Part part) {
  const absl::string_view weights =
      part == Part::kEmaModel ? kEmaFile : kModelFile;
  if (part == Part::kEmaModel && !ListsTensors(weights)) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder_, " has no averaged weights (", weights,
                     "), which a run with optimizer.ema saves; use its weights "
                     "(--weights=TRAINED)"));
  }
  RETURN_IF_ERROR(ReadStored(weights, kModelFile));
  RETURN_IF_ERROR(ReadListed(std::string(kConfigFile)));
  // A tokenizer that the manifest lists must be there.
  if (files_.contains(std::string(kTokenizerFile))) {
    return ReadListed(std::string(kTokenizerFile));
  }
  for (absl::string_view name : {kTokenizerFile, kStateFile}) {
    if (Lists(name) && FileExists(absl::StrCat(folder_, "/", name))) {
      return ReadListed(std::string(name));
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Read(const std::string& name, const Json* expected) {
  if (!IsPlainName(name)) {
    return absl::DataLossError(
        absl::StrCat(folder_, ": '", name,
                     "', which the manifest or an index names, is not a plain "
                     "file name"));
  }
  return IsTensorFile(name) ? ReadTensors(name, expected)
                            : ReadText(name, expected);
}

absl::Status Checkpoint::ReadTensors(const std::string& name,
                                     const Json* expected) {
  const std::string path = absl::StrCat(folder_, "/", name);
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> opened =
      SafetensorsFile::Open(path);
  RETURN_IF_ERROR(OpenStatus(opened.status()));
  if (expected != nullptr) {
    RETURN_IF_ERROR(CheckHeader(**opened, *expected));
    if (verified_.contains(name)) {
      RETURN_IF_ERROR(CheckBytes(**opened, *expected));
    }
  }
  tensor_files_[name] = *std::move(opened);
  return absl::OkStatus();
}

absl::Status Checkpoint::ReadText(const std::string& name,
                                  const Json* expected) {
  const std::string path = absl::StrCat(folder_, "/", name);
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  RETURN_IF_ERROR(OpenStatus(file.status()));
  const absl::string_view bytes = file->bytes();
  if (expected != nullptr) {
    RETURN_IF_ERROR(CheckSize(path, bytes.size(), *expected));
    if (!HasText(*expected, kChecksum, ChecksumOf(bytes))) {
      return absl::DataLossError(absl::StrCat(path, " is damaged (checksum)"));
    }
  }
  if (name == kConfigFile) config_text_ = std::string(bytes);
  for (const absl::string_view tensors : kTensorFiles) {
    if (name == IndexName(tensors)) texts_[name] = std::string(bytes);
  }
  if (name != kStateFile && name != kTokenizerFile) return absl::OkStatus();
  Json& json = name == kStateFile ? state_ : tokenizer_;
  json = ParseJson(bytes);
  if (json.is_discarded()) {
    return absl::DataLossError(absl::StrCat(path, " is not JSON"));
  }
  return absl::OkStatus();
}

const Json& Checkpoint::tokenizer() const {
  if (!tokenizer_.is_null() || !state_.is_object()) return tokenizer_;
  const auto found = state_.find("tokenizer");
  return found == state_.end() ? tokenizer_ : *found;
}

std::string Checkpoint::config_source() const {
  return absl::StrCat(folder_, "/", config_file_);
}

std::string Checkpoint::tokenizer_source() const {
  return tokenizer_.is_null()
             ? absl::StrCat(folder_, "/", kStateFile, ": tokenizer")
             : absl::StrCat(folder_, "/", kTokenizerFile);
}

absl::StatusOr<const StoredTensors*> Checkpoint::Tensors(
    absl::string_view name) const {
  const auto found = stored_.find(name);
  if (found == stored_.end()) {
    return absl::NotFoundError(absl::StrCat(folder_, " has no ", name));
  }
  return &found->second;
}

}  // namespace tessera
