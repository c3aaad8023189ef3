#include "framework/base/violations.h"

#include "absl/strings/str_cat.h"

namespace tessera {

Violations Violations::In(absl::string_view field) const {
  Violations nested = *this;
  nested.prefix_ = absl::StrCat(prefix_, field, ".");
  return nested;
}

void Violations::Add(absl::string_view field, absl::string_view message) const {
  list_->push_back({absl::StrCat(prefix_, field), std::string(message)});
}

void Violations::Check(bool holds, absl::string_view field,
                       absl::string_view message) const {
  if (!holds) Add(field, message);
}

}  // namespace tessera
