#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_IMAGE_CACHE_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_IMAGE_CACHE_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {
namespace fused {

// A cache of compiled kernels in files of one folder, which processes share;
// files are replaced atomically. A file holds its key and a checksum, so
// neither damage nor a hash collision can return a wrong image.
class ImageCache {
 public:
  // `directory` is created by the first Write().
  explicit ImageCache(std::string directory)
      : directory_(std::move(directory)) {}

  // `key` must contain everything that the image depends on. NotFound if the
  // image is not cached, DataLoss if its file is not what Write() wrote.
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
