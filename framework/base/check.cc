#include "framework/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace tessera {

void CheckFailed(const char* file, int line, absl::string_view message) {
  std::fprintf(stderr, "%s:%d: %.*s\n", file, line,
               static_cast<int>(message.size()), message.data());
  std::abort();
}

}  // namespace tessera
