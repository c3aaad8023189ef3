#include "framework/ops/linear/product_table.h"

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/json.h"
#include "framework/base/log.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// The folder of a path with at least one slash.
std::string FolderOf(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

}  // namespace

ProductTable::ProductTable(std::string machine, std::string path)
    : machine_(std::move(machine)),
      path_(std::move(path)),
      algorithms_(ReadFromFile()) {}

std::optional<std::string> ProductTable::Find(absl::string_view kind) const {
  for (const Json* const table : {&preferred_, &algorithms_}) {
    const auto found = table->find(std::string(kind));
    if (found != table->end()) return found->get<std::string>();
  }
  return std::nullopt;
}

std::string ProductTable::Add(const std::string& kind, std::string algorithm) {
  algorithms_.update(ReadFromFile());
  const auto [added, is_new] = algorithms_.emplace(kind, std::move(algorithm));
  if (is_new && !path_.empty()) {
    absl::Status written = MakeDirectories(FolderOf(path_));
    if (written.ok()) {
      written = WriteFileAtomically(
          path_,
          Json{{"machine", machine_}, {"algorithms", algorithms_}}.dump(1));
    }
    if (!written.ok() && !warned_) {
      warned_ = true;
      LogWarning(absl::StrCat("later runs will time matrix products again: ",
                              written.message()));
    }
  }
  return added->get<std::string>();
}

void ProductTable::Prefer(const Json& table) {
  preferred_.update(AlgorithmsOf(table));
}

Json ProductTable::AlgorithmsOf(const Json& table) const {
  if (!table.is_object() || table.value("machine", Json()) != machine_ ||
      !table.value("algorithms", Json()).is_object()) {
    return Json::object();
  }
  const Json& algorithms = table["algorithms"];
  for (const auto& [kind, algorithm] : algorithms.items()) {
    if (!algorithm.is_string()) return Json::object();
  }
  return algorithms;
}

Json ProductTable::ReadFromFile() const {
  if (path_.empty() || !FileExists(path_)) return Json::object();
  const absl::StatusOr<std::string> text = ReadFile(path_);
  if (!text.ok()) return Json::object();
  return AlgorithmsOf(ParseJson(*text));
}

}  // namespace tessera
