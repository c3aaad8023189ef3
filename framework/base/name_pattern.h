#ifndef FRAMEWORK_BASE_NAME_PATTERN_H_
#define FRAMEWORK_BASE_NAME_PATTERN_H_

#include "absl/strings/string_view.h"

namespace tessera {

// Whether `pattern` matches all of `name`. '*' matches any sequence of
// characters, including none and including dots: "layers.*.ffn.*" matches every
// feed-forward weight. There is no other wildcard.
bool NameMatches(absl::string_view pattern, absl::string_view name);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_NAME_PATTERN_H_
