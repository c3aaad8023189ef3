#ifndef FRAMEWORK_BASE_ROUND_UP_H_
#define FRAMEWORK_BASE_ROUND_UP_H_

#include <cstdint>

namespace tessera {

// The least multiple of `multiple` > 0 that is not below `value` >= 0.
constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace tessera

#endif  // FRAMEWORK_BASE_ROUND_UP_H_
