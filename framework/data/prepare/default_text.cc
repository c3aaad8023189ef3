#include "framework/data/prepare/default_text.h"

#include <link.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/base/file.h"
#include "framework/base/file_lock.h"
#include "framework/base/new_folder.h"
#include "framework/base/status_macros.h"
#include "xxhash.h"

namespace tessera {
namespace {

// Files above the first limit are tables and generated code. The second limits
// the preparation time; current headers have about 18 MB.
constexpr int64_t kMaxFileBytes = 512 << 10;
constexpr int64_t kMaxTextBytes = 32 << 20;

struct Header {
  std::string path;  // relative to the include folder
  int64_t bytes = 0;
};

// The path of the loaded libtorch_cpu.so with links resolved; empty if it is
// not loaded.
std::string LoadedLibTorch() {
  std::string path;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        if (!absl::EndsWith(info->dlpi_name, "/libtorch_cpu.so")) return 0;
        *static_cast<std::string*>(found) = info->dlpi_name;
        return 1;
      },
      &path);
  if (path.empty()) return path;
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return path;
  path = resolved;
  free(resolved);
  return path;
}

// The headers of TORCH/lib/libtorch_cpu.so are in TORCH/include.
absl::StatusOr<std::string> IncludeFolder() {
  const std::string library = LoadedLibTorch();
  if (library.empty()) {
    return absl::NotFoundError(
        "the default text is LibTorch's headers, but this program has not "
        "loaded LibTorch");
  }
  const size_t lib = library.rfind('/');
  const size_t root = library.rfind('/', lib - 1);
  const std::string include = absl::StrCat(
      library.substr(0, root == std::string::npos ? 0 : root), "/include");
  if (FileExists(include)) return include;
  return absl::NotFoundError(absl::StrCat(
      "the default text is LibTorch's headers, but ", library, " has none at ",
      include,
      "; prepare a text of your own with trainers:prepare_data and name its "
      "folder in data.token_files.train"));
}

bool IsHeader(absl::string_view name) {
  return absl::EndsWith(name, ".h") || absl::EndsWith(name, ".hpp") ||
         absl::EndsWith(name, ".cuh");
}

absl::Status Collect(const std::string& root, const std::string& folder,
                     std::vector<Header>* headers) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names,
                   ListDirectory(absl::StrCat(root, "/", folder)));
  for (const std::string& name : names) {
    const std::string path =
        folder.empty() ? name : absl::StrCat(folder, "/", name);
    struct stat info;
    if (stat(absl::StrCat(root, "/", path).c_str(), &info) != 0) continue;
    if (S_ISDIR(info.st_mode) && path != "ATen/ops") {
      RETURN_IF_ERROR(Collect(root, path, headers));
    } else if (S_ISREG(info.st_mode) && IsHeader(name) &&
               info.st_size <= kMaxFileBytes) {
      headers->push_back({path, info.st_size});
    }
  }
  return absl::OkStatus();
}

// Sorted by path; if there are too many, thinned out evenly.
absl::StatusOr<std::vector<Header>> Headers(const std::string& include) {
  std::vector<Header> headers;
  RETURN_IF_ERROR(Collect(include, "", &headers));
  int64_t bytes = 0;
  for (const Header& header : headers) bytes += header.bytes;
  std::erase_if(headers, [&](const Header& header) {
    const uint64_t hash = XXH3_64bits(header.path.data(), header.path.size());
    return std::ldexp(hash, -64) * bytes >= kMaxTextBytes;
  });
  std::sort(headers.begin(), headers.end(),
            [](const Header& a, const Header& b) { return a.path < b.path; });
  return headers;
}

// The name of the prepared folder, from what determines its contents; of the
// headers their names and sizes.
std::string CacheKey(const std::vector<Header>& headers,
                     const PrepareOptions& options) {
  constexpr int kRevision = 2;  // of the contents, beside their format
  std::string key = absl::StrFormat(
      "%d.%d %s %d %.17g %d %s\n", Manifest::kVersion, kRevision,
      Name(options.tokenizer), options.vocab_size, options.validation_fraction,
      options.seed, options.separator);
  for (const Header& header : headers) {
    absl::StrAppend(&key, header.path, " ", header.bytes, "\n");
  }
  const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

absl::StatusOr<FileLock> Lock(const std::string& folder,
                              const ProgressSink& progress) {
  constexpr absl::string_view kWaiting =
      "waiting for another process that prepares the default text";
  RETURN_IF_ERROR(MakeDirectories(folder.substr(0, folder.rfind('/'))));
  bool waited = false;
  ASSIGN_OR_RETURN(FileLock lock, FileLock::Wait(folder + ".lock", [&] {
                     waited = true;
                     Report(progress, kWaiting, 0);
                   }));
  if (waited) Report(progress, kWaiting, 1);
  return lock;
}

// Locks `folder` for creation or removal; creates its parent if needed.
absl::StatusOr<FileLock> LockInCache(const std::string& folder,
                                     const ProgressSink& progress) {
  absl::StatusOr<FileLock> lock = Lock(folder, progress);
  if (lock.ok()) return lock;
  return absl::Status(
      lock.status().code(),
      absl::StrCat(lock.status().message(),
                   "; set XDG_CACHE_HOME to a folder that can be written"));
}

// Whether a folder that gives this error has other contents than were written.
// Any other error, such as too many open files, is no reason to remove it.
bool IsDamaged(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status) ||
         absl::IsNotFound(status);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> DefaultTextFiles() {
  ASSIGN_OR_RETURN(const std::string include, IncludeFolder());
  ASSIGN_OR_RETURN(const std::vector<Header> headers, Headers(include));
  std::vector<std::string> files;
  for (const Header& header : headers) {
    files.push_back(absl::StrCat(include, "/", header.path));
  }
  return files;
}

absl::StatusOr<PreparedFolder> OpenDefaultText(const PrepareOptions& options) {
  ASSIGN_OR_RETURN(const std::string include, IncludeFolder());
  ASSIGN_OR_RETURN(const std::vector<Header> headers, Headers(include));
  ASSIGN_OR_RETURN(const std::string cache, UserCacheDir());
  const std::string folder =
      absl::StrCat(cache, "/datasets/", CacheKey(headers, options));
  {
    // The folder appears only when complete, so reading takes no lock. On a
    // cluster the cache may be read-only.
    absl::StatusOr<PreparedFolder> cached = OpenPreparedFolder(folder);
    if (cached.ok()) return cached;
  }
  ASSIGN_OR_RETURN(const FileLock lock, LockInCache(folder, options.progress));
  if (FileExists(folder)) {  // another process has made it, or it is damaged
    absl::StatusOr<PreparedFolder> cached = OpenPreparedFolder(folder);
    if (cached.ok() || !IsDamaged(cached.status())) return cached;
    // Replace a damaged cache entry: only this program writes there.
    RETURN_IF_ERROR(RemoveTree(folder));
  }
  // Leftovers of killed processes; an active process would hold the lock.
  if (lock.is_exclusive()) RETURN_IF_ERROR(RemoveUnfinished(folder));
  std::vector<std::string> files;
  for (const Header& header : headers) {
    files.push_back(absl::StrCat(include, "/", header.path));
  }
  PrepareOptions any_header = options;
  any_header.invalid_text = InvalidText::kKeep;
  const absl::Status prepared = PrepareText(files, folder, any_header).status();
  absl::StatusOr<PreparedFolder> made = OpenPreparedFolder(folder);
  // Without a lock, another process may have been faster.
  if (!made.ok() && !prepared.ok()) return prepared;
  return made;
}

}  // namespace tessera
