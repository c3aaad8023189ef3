#ifndef FRAMEWORK_BASE_JSON_H_
#define FRAMEWORK_BASE_JSON_H_

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tessera {

// More than any file of ours nests. nlohmann's dump() calls itself for each
// level: a hundred thousand of them overflow the stack.
inline constexpr int kMaxJsonDepth = 64;

// The value that `text`, of a file that may be damaged or hostile, holds.
// Discarded (is_discarded()) if it is not JSON, nests deeper than
// kMaxJsonDepth, or has a NUL, which nlohmann takes for the end of the text.
nlohmann::json ParseJson(absl::string_view text);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_JSON_H_
