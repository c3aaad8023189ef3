#include "attention_backends/compiled_fused/image_cache.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "xxhash.h"

namespace tessera {
namespace fused {
namespace {

// A file holds this header, the key and the image.
struct Header {
  char magic[8];
  uint64_t key_bytes;
  uint64_t image_bytes;
  uint64_t checksum;  // XXH3 of key and image
};
constexpr char kMagic[8] = {'T', 'S', 'K', 'E', 'R', 'N', '0', '1'};

absl::Status Damaged(const std::string& path) {
  return absl::DataLossError(
      absl::StrCat(path, " is damaged or holds another kernel"));
}

}  // namespace

std::string ImageCache::PathOf(absl::string_view key) const {
  const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
  return absl::StrFormat("%s/%016x%016x.kernels", directory_, hash.high64,
                         hash.low64);
}

absl::StatusOr<std::string> ImageCache::Read(absl::string_view key) const {
  const std::string path = PathOf(key);
  if (!FileExists(path)) {
    return absl::NotFoundError(absl::StrCat("there is no ", path));
  }
  ASSIGN_OR_RETURN(const std::string file, ReadFile(path));
  Header header;
  if (file.size() < sizeof(header)) return Damaged(path);
  file.copy(reinterpret_cast<char*>(&header), sizeof(header));
  const absl::string_view rest = absl::string_view(file).substr(sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 ||
      header.key_bytes != key.size() || !absl::StartsWith(rest, key) ||
      header.image_bytes != rest.size() - key.size() ||
      header.checksum != XXH3_64bits(rest.data(), rest.size())) {
    return Damaged(path);
  }
  return std::string(rest.substr(key.size()));
}

absl::Status ImageCache::Write(absl::string_view key,
                               absl::string_view image) const {
  const std::string rest = absl::StrCat(key, image);
  Header header = {
      {}, key.size(), image.size(), XXH3_64bits(rest.data(), rest.size())};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  std::string file(sizeof(header), '\0');
  std::memcpy(file.data(), &header, sizeof(header));
  RETURN_IF_ERROR(MakeDirectories(directory_));
  return WriteFileAtomically(PathOf(key), file + rest);
}

}  // namespace fused
}  // namespace tessera
