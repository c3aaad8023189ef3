#include "framework/base/field_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

namespace tessera {
namespace {

constexpr absl::string_view kFieldPayload = "tessera/field";

// `status` with `prefix` before its message.
absl::Status Prefixed(absl::string_view prefix, const absl::Status& status) {
  absl::Status prefixed(status.code(),
                        absl::StrCat(prefix, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    prefixed.SetPayload(type, payload);
  });
  return prefixed;
}

}  // namespace

absl::Status FieldError(absl::string_view field, const absl::Status& error) {
  absl::Status named = Prefixed(field, error);
  named.SetPayload(kFieldPayload, absl::Cord(field));
  return named;
}

absl::Status WithPlace(
    const absl::Status& status,
    absl::FunctionRef<std::string(absl::string_view field)> place) {
  const absl::optional<absl::Cord> field = status.GetPayload(kFieldPayload);
  if (!field.has_value()) return status;
  absl::Status placed = Prefixed(place(std::string(*field)), status);
  placed.ErasePayload(kFieldPayload);
  return placed;
}

}  // namespace tessera
