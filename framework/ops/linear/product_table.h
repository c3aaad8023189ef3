#ifndef FRAMEWORK_OPS_LINEAR_PRODUCT_TABLE_H_
#define FRAMEWORK_OPS_LINEAR_PRODUCT_TABLE_H_

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tessera {

// Which algorithm computes each kind of matrix product on one kind of machine.
// In a file, {"machine": "NVIDIA H200, cuBLASLt 130100", "algorithms": {KIND:
// HEXADECIMAL}}, so that a choice is made once.
class ProductTable {
 public:
  // `path`: empty for a table that is not kept. A file that is missing, damaged
  // or of another machine counts as empty and is replaced.
  ProductTable(std::string machine, std::string path);

  std::optional<std::string> Find(absl::string_view kind) const;
  // Adds a choice, also to the file, with what other processes have added
  // meanwhile; theirs win. Returns the choice that is now in the table. A file
  // that cannot be written is one warning.
  std::string Add(const std::string& kind, std::string algorithm);

  // Takes the choices of `table`, a file's contents, if it is of this machine.
  // They are used before those of the file.
  void Prefer(const nlohmann::json& table);

  const std::string& machine() const { return machine_; }

 private:
  // The algorithms of a table; empty if it is of another machine or malformed.
  nlohmann::json AlgorithmsOf(const nlohmann::json& table) const;
  nlohmann::json ReadFromFile() const;

  const std::string machine_, path_;
  nlohmann::json preferred_ = nlohmann::json::object();
  nlohmann::json algorithms_;
  bool warned_ = false;
};

}  // namespace tessera

#endif  // FRAMEWORK_OPS_LINEAR_PRODUCT_TABLE_H_
