#ifndef FRAMEWORK_BASE_JSON_H_
#define FRAMEWORK_BASE_JSON_H_

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tessera {

// Deeper than any of our files. nlohmann's dump() is recursive: a hundred
// thousand levels overflow the stack.
inline constexpr int kMaxJsonDepth = 64;

// Parses `text`, which may come from a damaged or hostile file. The result is
// discarded (is_discarded()) if `text` is not JSON, nests deeper than
// kMaxJsonDepth, or contains a NUL, which nlohmann takes for the end of the
// text.
nlohmann::json ParseJson(absl::string_view text);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_JSON_H_
