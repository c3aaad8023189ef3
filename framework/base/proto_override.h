#ifndef FRAMEWORK_BASE_PROTO_OVERRIDE_H_
#define FRAMEWORK_BASE_PROTO_OVERRIDE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace tessera {

// Applies one `--set` of a command line: "PATH=VALUE", PATH being the field's
// names from the root joined by dots.
//   model.num_layers=2                      numbers
//   training.deterministic=true             true or false
//   precision.mode=BF16                     an enum's value by name
//   training.sample_prompt=Once upon        text, with or without quotes
//   model.frozen=[token_*, layers.0.*]      a list, in place of the old one
//   optimizer.adamw={lr: 3e-4 beta2: 0.95}  a message, in place of the old one
// Setting a field inside a oneof's case selects that case.
//
// Returns PATH. InvalidArgument, with `message` as it was, when there is no
// such field (and the nearest that there is) or VALUE is not of its type (and
// what is expected).
absl::StatusOr<std::string> ApplyOverride(absl::string_view assignment,
                                          google::protobuf::Message* message);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_PROTO_OVERRIDE_H_
