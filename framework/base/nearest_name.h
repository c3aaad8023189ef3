#ifndef FRAMEWORK_BASE_NEAREST_NAME_H_
#define FRAMEWORK_BASE_NEAREST_NAME_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tessera {

// The one of `names` that a user who typed `name` most likely meant; empty if
// none is close. At most a third of the letters may be missing, added or
// replaced; case is ignored.
std::string NearestName(absl::string_view name,
                        const std::vector<std::string>& names);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_NEAREST_NAME_H_
