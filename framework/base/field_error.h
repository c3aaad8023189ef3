#ifndef FRAMEWORK_BASE_FIELD_ERROR_H_
#define FRAMEWORK_BASE_FIELD_ERROR_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Errors that a field of the config causes together with the device, the ranks
// or a file, so that Validate() cannot find them (violations.h).

// A copy of `error` that names the field: "attention.backend: MESSAGE".
absl::Status FieldError(absl::string_view field, const absl::Status& error);

// A copy of a FieldError() that begins with the place that sets the field, as
// in "configs/mine.pbtxt:12:7: attention.backend: MESSAGE"; any other status
// unchanged. `place` returns the place of a field.
absl::Status WithPlace(
    const absl::Status& status,
    absl::FunctionRef<std::string(absl::string_view field)> place);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_FIELD_ERROR_H_
