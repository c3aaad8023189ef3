#ifndef FRAMEWORK_DATA_PREPARE_DEFAULT_TEXT_H_
#define FRAMEWORK_DATA_PREPARE_DEFAULT_TEXT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "framework/data/prepare/prepare_text.h"

namespace tessera {

// The C++ headers that came with the LibTorch this process has loaded, sorted
// by path, without the generated ones: ATen/ops (thousands of near-identical
// stubs) and files above 512 KiB. NotFound where LibTorch is not loaded or was
// installed without headers.
absl::StatusOr<std::vector<std::string>> DefaultTextFiles();

// The default text prepared with `options`: at once where the user's cache
// holds it, which may be read-only then, else made there first, by one process
// while others wait.
absl::StatusOr<PreparedFolder> OpenDefaultText(const PrepareOptions& options);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_DEFAULT_TEXT_H_
