#ifndef FRAMEWORK_OBSERVE_BLOCK_PATH_H_
#define FRAMEWORK_OBSERVE_BLOCK_PATH_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

// Where a program repeats a part, the scopes are "block_0", "block_1", ...
// Observers record paths with them; tables show one row for all blocks.

// Whether `scope`, one component of a path, is a block: "block_3".
bool IsBlock(absl::string_view scope);

// "3" of "block_3"; other scopes as they are.
absl::string_view BlockLabel(absl::string_view scope);

// `path` with `all` in place of each block: "backward/block_3/ffn" as
// "backward/block_*/ffn".
std::string FoldBlocks(absl::string_view path,
                       absl::string_view all = "block_*");

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_BLOCK_PATH_H_
