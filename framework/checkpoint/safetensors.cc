#include "framework/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "xxhash.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors is little-endian, and bytes are copied unchanged");

constexpr uint64_t kLengthBytes = 8;

absl::Status InFile(const absl::Status& status, absl::string_view path) {
  return absl::Status(status.code(),
                      absl::StrCat(path, ": ", status.message()));
}

absl::StatusOr<SafetensorsHeader> ParseFile(absl::string_view bytes) {
  if (bytes.size() < kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has ", bytes.size(), " bytes; a safetensors file has at least 8"));
  }
  uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "claims a header of ", header_bytes, " bytes; the format allows ",
        kMaxSafetensorsHeaderBytes, " (is this a safetensors file?)"));
  }
  bytes.remove_prefix(kLengthBytes);
  if (header_bytes > bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("claims a header of ", header_bytes, " bytes; only ",
                     bytes.size(), " follow (cut short?)"));
  }
  return ParseSafetensorsHeader(bytes.substr(0, header_bytes),
                                bytes.size() - header_bytes);
}

absl::Status CheckNames(absl::Span<const TensorSpec> specs) {
  absl::flat_hash_set<absl::string_view> names;
  for (const TensorSpec& spec : specs) {
    if (spec.name == "__metadata__" || !names.insert(spec.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the tensor name '", spec.name, "' is reserved or occurs twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(
    const std::string& path) {
  auto file = absl::WrapUnique(new SafetensorsFile());
  ASSIGN_OR_RETURN(file->file_,
                   MappedFile::Open(path, MappedFile::ReadOrder::kFrontToBack));
  absl::StatusOr<SafetensorsHeader> header = ParseFile(file->file_.bytes());
  if (!header.ok()) return InFile(header.status(), path);
  file->path_ = path;
  file->header_ = *std::move(header);
  const absl::Span<const TensorEntry> tensors = file->tensors();
  const uint64_t data_bytes = tensors.empty() ? 0 : tensors.back().end;
  file->data_start_ = file->size_bytes() - data_bytes;
  for (int64_t i = 0; i < tensors.size(); ++i) {
    file->index_.emplace(tensors[i].spec.name, i);
  }
  return file;
}

absl::string_view SafetensorsFile::header_bytes() const {
  return file_.bytes().substr(0, data_start_);
}

const TensorEntry* SafetensorsFile::Find(absl::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

absl::string_view SafetensorsFile::Bytes(const TensorEntry& entry) const {
  return file_.bytes().substr(data_start_ + entry.begin,
                              entry.end - entry.begin);
}

struct SafetensorsWriter::Hasher {
  Hasher() : state(XXH3_createState()) { XXH3_64bits_reset(state); }
  ~Hasher() { XXH3_freeState(state); }

  XXH3_state_t* const state;
};

SafetensorsWriter::SafetensorsWriter() : hasher_(std::make_unique<Hasher>()) {}

SafetensorsWriter::~SafetensorsWriter() = default;

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::vector<TensorSpec> tensors,
    const SafetensorsMetadata& metadata, WritePointHook hook) {
  auto writer = absl::WrapUnique(new SafetensorsWriter());
  writer->specs_ = std::move(tensors);
  const absl::StatusOr<std::string> header = writer->LayOut(metadata);
  if (!header.ok()) return InFile(header.status(), path);
  ASSIGN_OR_RETURN(writer->file_, DurableFile::Create(path, std::move(hook)));
  RETURN_IF_ERROR(writer->file_->WriteAt(0, *header));
  return writer;
}

absl::StatusOr<std::string> SafetensorsWriter::LayOut(
    const SafetensorsMetadata& metadata) {
  RETURN_IF_ERROR(CheckNames(specs_));
  const int64_t count = specs_.size();
  for (const TensorSpec& spec : specs_) {
    ASSIGN_OR_RETURN(const uint64_t bytes, SizeBytes(spec));
    sizes_.push_back(bytes);
  }
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [this](int64_t a, int64_t b) {
    return SizeBytes(specs_[a].dtype) > SizeBytes(specs_[b].dtype);
  });
  begins_.resize(count);
  SafetensorsHeader header{.metadata = metadata};
  for (int64_t i : order) {
    begins_[i] = data_bytes_;
    if (__builtin_add_overflow(data_bytes_, sizes_[i], &data_bytes_)) {
      return absl::InvalidArgumentError("the tensors exceed 64 bits of bytes");
    }
    header.tensors.push_back({specs_[i], begins_[i], data_bytes_});
  }
  ASSIGN_OR_RETURN(const std::string json, SerializeSafetensorsHeader(header));
  std::string start(kLengthBytes, '\0');
  const uint64_t header_bytes = json.size();
  std::memcpy(start.data(), &header_bytes, kLengthBytes);
  start += json;
  data_start_ = start.size();
  header_checksum_ = XXH3_64bits(start.data(), start.size());
  CloseFullTensors();
  return start;
}

void SafetensorsWriter::CloseFullTensors() {
  while (checksums_.size() < specs_.size() &&
         position_ == sizes_[checksums_.size()]) {
    checksums_.push_back(XXH3_64bits_digest(hasher_->state));
    XXH3_64bits_reset(hasher_->state);
    position_ = 0;
  }
}

absl::Status SafetensorsWriter::Write(absl::string_view bytes) {
  while (!bytes.empty()) {
    const int64_t tensor = checksums_.size();
    if (tensor == specs_.size()) {
      return absl::OutOfRangeError(
          absl::StrCat(file_->path(), ": ", bytes.size(),
                       " bytes more than the declared tensors have"));
    }
    const absl::string_view piece = bytes.substr(0, sizes_[tensor] - position_);
    RETURN_IF_ERROR(
        file_->WriteAt(data_start_ + begins_[tensor] + position_, piece));
    XXH3_64bits_update(hasher_->state, piece.data(), piece.size());
    position_ += piece.size();
    CloseFullTensors();
    bytes.remove_prefix(piece.size());
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  if (checksums_.size() < specs_.size()) {
    const int64_t tensor = checksums_.size();
    return absl::FailedPreconditionError(
        absl::StrCat(file_->path(), ": tensor '", specs_[tensor].name, "' has ",
                     position_, " of its ", sizes_[tensor], " bytes"));
  }
  if (finished_) return absl::OkStatus();
  RETURN_IF_ERROR(file_->SyncAndClose());
  finished_ = true;
  return absl::OkStatus();
}

}  // namespace tessera
