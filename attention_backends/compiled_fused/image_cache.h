#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_IMAGE_CACHE_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_IMAGE_CACHE_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {
namespace fused {

// Compiled kernels as files of one folder, shared by processes: each file is
// replaced as one. A file holds its key and a checksum, so neither a damaged
// one nor two keys of one hash give a wrong image.
class ImageCache {
 public:
  // `directory` is made when something is first written.
  explicit ImageCache(std::string directory)
      : directory_(std::move(directory)) {}

  // Everything that an image depends on is in its key. NotFound where there is
  // none, DataLoss where the file is not what Write() left.
  absl::StatusOr<std::string> Read(absl::string_view key) const;
  absl::Status Write(absl::string_view key, absl::string_view image) const;

  // DIRECTORY/0123456789abcdef0123456789abcdef.kernels
  std::string PathOf(absl::string_view key) const;

 private:
  std::string directory_;
};

}  // namespace fused
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_IMAGE_CACHE_H_
