#ifndef FRAMEWORK_DATA_PREPARE_DEFAULT_TEXT_H_
#define FRAMEWORK_DATA_PREPARE_DEFAULT_TEXT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "framework/data/prepare/prepare_text.h"

namespace tessera {

// The C++ headers of the LibTorch that this process has loaded, sorted by path,
// except generated ones: ATen/ops (thousands of near-identical stubs) and files
// above 512 KiB. NotFound if LibTorch is not loaded or was installed without
// headers.
absl::StatusOr<std::vector<std::string>> DefaultTextFiles();

// Opens the default text prepared with `options`. Prepares it first if it is
// not in the user's cache; other processes wait meanwhile. A cache that has it
// may be read-only.
absl::StatusOr<PreparedFolder> OpenDefaultText(const PrepareOptions& options);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_DEFAULT_TEXT_H_
