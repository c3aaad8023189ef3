#include "framework/checkpoint/tensor_files.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "framework/base/json.h"
#include "framework/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

constexpr char kMetadata[] = "metadata";
constexpr char kTotalSize[] = "total_size";
constexpr char kWeightMap[] = "weight_map";

// "model.safetensors" -> "model-00002-of-00003.safetensors"
void NumberFiles(absl::string_view name, std::vector<TensorFile>* files) {
  constexpr absl::string_view kSuffix = ".safetensors";
  if (files->size() == 1) {
    files->front().name = std::string(name);
    return;
  }
  const absl::string_view stem = absl::StripSuffix(name, kSuffix);
  for (size_t i = 0; i < files->size(); ++i) {
    (*files)[i].name = absl::StrFormat("%s-%05d-of-%05d%s", stem, i + 1,
                                       files->size(), kSuffix);
  }
}

StoredTensor TensorIn(const SafetensorsFile& file, const TensorEntry& entry) {
  return {entry.spec, file.Bytes(entry), file.path()};
}

}  // namespace

absl::StatusOr<std::vector<TensorFile>> DivideIntoFiles(
    absl::string_view name, std::vector<TensorSpec> tensors,
    uint64_t max_bytes) {
  std::sort(
      tensors.begin(), tensors.end(),
      [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  std::vector<TensorFile> files(1);
  for (TensorSpec& tensor : tensors) {
    ASSIGN_OR_RETURN(const uint64_t bytes, SizeBytes(tensor));
    const uint64_t filled = files.back().bytes;
    if (!files.back().tensors.empty() &&
        (filled > max_bytes || bytes > max_bytes - filled)) {
      files.emplace_back();
    }
    files.back().bytes += bytes;
    files.back().tensors.push_back(std::move(tensor));
  }
  NumberFiles(name, &files);
  return files;
}

std::string IndexName(absl::string_view name) {
  return absl::StrCat(name, ".index.json");
}

std::string IndexOf(absl::Span<const TensorFile> files) {
  uint64_t total = 0;
  nlohmann::json map = nlohmann::json::object();
  for (const TensorFile& file : files) {
    total += file.bytes;
    for (const TensorSpec& tensor : file.tensors) map[tensor.name] = file.name;
  }
  const nlohmann::json index = {{kMetadata, {{kTotalSize, total}}},
                                {kWeightMap, std::move(map)}};
  return index.dump(2) + "\n";
}

absl::StatusOr<std::map<std::string, std::string>> ParseIndex(
    absl::string_view path, absl::string_view text) {
  const nlohmann::json index = ParseJson(text);
  const auto not_an_index = [&](absl::string_view why) {
    return absl::DataLossError(
        absl::StrCat(path, " is not an index of safetensors files: ", why));
  };
  if (!index.is_object()) return not_an_index("not a JSON object");
  const auto found = index.find(kWeightMap);
  if (found == index.end() || !found->is_object()) {
    return not_an_index("weight_map is missing or not an object");
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, file] : found->items()) {
    if (!file.is_string()) {
      return not_an_index(
          absl::StrCat("the file of tensor '", tensor, "' is not a string"));
    }
    weight_map[tensor] = file.get<std::string>();
  }
  return weight_map;
}

std::vector<int> ShareFiles(absl::Span<const uint64_t> bytes, int count) {
  std::vector<int64_t> order(bytes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return bytes[a] > bytes[b]; });
  std::vector<uint64_t> loads(count, 0);
  std::vector<int> parties(bytes.size());
  for (const int64_t file : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += bytes[file];
    parties[file] = static_cast<int>(least - loads.begin());
  }
  return parties;
}

StoredTensors::StoredTensors(const SafetensorsFile& file) : path_(file.path()) {
  for (const TensorEntry& entry : file.tensors()) {
    index_.emplace(entry.spec.name, TensorIn(file, entry));
  }
}

absl::StatusOr<StoredTensors> StoredTensors::FromIndex(
    std::string path, const std::map<std::string, std::string>& weight_map,
    const std::map<std::string, const SafetensorsFile*>& files) {
  StoredTensors stored(std::move(path));
  for (const auto& [tensor, name] : weight_map) {
    const SafetensorsFile* const file = files.at(name);
    const TensorEntry* const entry = file->Find(tensor);
    if (entry == nullptr) {
      return absl::DataLossError(absl::StrCat(file->path(), " has no tensor '",
                                              tensor, "', which ", stored.path_,
                                              " says is there"));
    }
    stored.index_.emplace(tensor, TensorIn(*file, *entry));
  }
  for (const auto& [name, file] : files) {
    for (const TensorEntry& entry : file->tensors()) {
      const auto found = weight_map.find(entry.spec.name);
      if (found != weight_map.end() && found->second == name) continue;
      return absl::DataLossError(
          absl::StrCat(stored.path_, " does not say that tensor '",
                       entry.spec.name, "' is in ", name));
    }
  }
  return stored;
}

const StoredTensor* StoredTensors::Find(absl::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &found->second;
}

absl::StatusOr<StoredTensors> StoredTensors::Renamed(
    const std::map<std::string, std::string>& names,
    absl::FunctionRef<bool(absl::string_view name)> redundant) const {
  StoredTensors renamed(path_);
  for (const auto& [name, tensor] : index_) {
    const auto found = names.find(name);
    if (found != names.end()) {
      StoredTensor& added = renamed.index_[found->second] = tensor;
      added.spec.name = found->second;
    } else if (!redundant(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          tensor.path, ": tensor ", name, " is not part of the model"));
    }
  }
  return renamed;
}

}  // namespace tessera
