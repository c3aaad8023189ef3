#ifndef FRAMEWORK_BASE_PROTO_OVERRIDE_H_
#define FRAMEWORK_BASE_PROTO_OVERRIDE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace tessera {

// Applies one `--set` flag, "PATH=VALUE". PATH is the field names from the
// root, joined by dots.
//   model.num_layers=2                      numbers
//   training.deterministic=true             true or false
//   precision.mode=BF16                     an enum value by name
//   training.sample_prompt=Once upon        text, with or without quotes
//   model.frozen=[token_*, layers.0.*]      a list, replaces the old one
//   optimizer.adamw={lr: 3e-4 beta2: 0.95}  a message, replaces the old one
// Setting a field inside a case of a oneof selects that case.
//
// Returns PATH. InvalidArgument, with `message` unchanged, if there is no such
// field (names the nearest one) or VALUE has the wrong type (names what is
// expected).
absl::StatusOr<std::string> ApplyOverride(absl::string_view assignment,
                                          google::protobuf::Message* message);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_PROTO_OVERRIDE_H_
