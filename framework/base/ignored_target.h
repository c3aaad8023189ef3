#ifndef FRAMEWORK_BASE_IGNORED_TARGET_H_
#define FRAMEWORK_BASE_IGNORED_TARGET_H_

#include <cstdint>

namespace tessera {

// A target that the loss ignores (padding at the end of an epoch).
inline constexpr int64_t kIgnoredTarget = -1;

}  // namespace tessera

#endif  // FRAMEWORK_BASE_IGNORED_TARGET_H_
