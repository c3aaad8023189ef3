#include "framework/base/file.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <system_error>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "framework/base/file_descriptor.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"

namespace tessera {
namespace {

absl::Status ErrnoStatus(absl::string_view action, absl::string_view path) {
  return SystemError(errno, absl::StrCat("cannot ", action, " ", path));
}

absl::Status ToStatus(const std::error_code& error, absl::string_view action,
                      absl::string_view path) {
  if (!error) return absl::OkStatus();
  return SystemError(error.value(), absl::StrCat("cannot ", action, " ", path));
}

absl::Status WriteAndSync(const std::string& path, absl::string_view contents) {
  const int fd =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return ErrnoStatus("create", path);
  absl::Status status = WriteAll(fd, contents, path);
  if (status.ok() && ::fsync(fd) != 0) status = ErrnoStatus("sync", path);
  // Some file systems report a failed write only here.
  if (::close(fd) != 0 && status.ok()) status = ErrnoStatus("close", path);
  return status;
}

absl::Status TooLarge(const std::string& path, int64_t max_bytes) {
  return absl::InvalidArgumentError(
      absl::StrCat("cannot read ", path, ": it is larger than ", max_bytes,
                   " bytes, the limit for such a file; check the path"));
}

constexpr absl::string_view kTemporarySuffix = ".tmp.";

// A name that no other writer uses: in this process, in another one, or on
// another machine or container that shares the file system and the process id.
std::string TemporarySibling(const std::string& path) {
  std::random_device bits;
  return absl::StrCat(path, kTemporarySuffix, ::getpid(), ".",
                      absl::Hex(bits()), absl::Hex(bits(), absl::kZeroPad8));
}

// Whether TemporarySibling() of a file called `name` may be called `sibling`.
bool IsTemporarySibling(absl::string_view sibling, absl::string_view name) {
  if (!absl::ConsumePrefix(&sibling, name) ||
      !absl::ConsumePrefix(&sibling, kTemporarySuffix)) {
    return false;
  }
  const size_t dot = sibling.find('.');
  return dot != absl::string_view::npos && dot > 0 &&
         absl::c_all_of(sibling.substr(0, dot), absl::ascii_isdigit) &&
         sibling.size() > dot + 8 &&
         absl::c_all_of(sibling.substr(dot + 1), absl::ascii_isxdigit);
}

// The standard descriptor that is redirected to `file`; -1 if none is.
int StandardOutputTo(const struct stat& file) {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat out;
    if (::fstat(fd, &out) == 0 && out.st_dev == file.st_dev &&
        out.st_ino == file.st_ino) {
      return fd;
    }
  }
  return -1;
}

// Writes to a device or pipe.
absl::Status WriteInPlace(const std::string& path, absl::string_view contents) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus("write", path);
  absl::Status status = WriteAll(fd, contents, path);
  if (::close(fd) != 0 && status.ok()) status = ErrnoStatus("write", path);
  return status;
}

}  // namespace

std::string DirectoryOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string LinkTarget(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) return path;
  const auto target = std::filesystem::canonical(path, error);
  return error ? path : target.string();
}

absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     int64_t max_bytes) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return ErrnoStatus("read", path);
  struct stat info;
  if (::fstat(file.fd(), &info) != 0) return ErrnoStatus("read", path);
  if (info.st_size > max_bytes) return TooLarge(path, max_bytes);
  // The size is a hint: files in /proc report 0, and a file can grow.
  constexpr size_t kStepBytes = 64 << 10;
  std::string contents(
      std::max<size_t>(static_cast<size_t>(info.st_size) + 1, kStepBytes), 0);
  size_t size = 0;
  while (true) {
    if (size == contents.size()) contents.resize(2 * size);
    const ssize_t count =
        ::read(file.fd(), contents.data() + size, contents.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus("read", path);
    if (count == 0) break;
    size += static_cast<size_t>(count);
    if (static_cast<int64_t>(size) > max_bytes) {
      return TooLarge(path, max_bytes);
    }
  }
  contents.resize(size);
  return contents;
}

absl::Status WriteAll(int descriptor, absl::string_view contents,
                      const std::string& path) {
  while (!contents.empty()) {
    const ssize_t written =
        ::write(descriptor, contents.data(), contents.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus("write", path);
    contents.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view contents) {
  struct stat info;
  if (::stat(path.c_str(), &info) == 0) {
    // /dev/stdout: a file may hold other output already, and a socket cannot be
    // opened by its path.
    const bool is_file = S_ISREG(info.st_mode);
    if (is_file || S_ISSOCK(info.st_mode)) {
      const int fd = StandardOutputTo(info);
      if (fd >= 0) return WriteAll(fd, contents, path);
    }
    if (!is_file) return WriteInPlace(path, contents);
  }
  const std::string target = LinkTarget(path);
  const std::string temporary = TemporarySibling(target);
  absl::Status status = WriteAndSync(temporary, contents);
  if (status.ok() && ::rename(temporary.c_str(), target.c_str()) != 0) {
    status = ErrnoStatus("replace", path);
  }
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  return SyncDirectory(DirectoryOf(target));
}

absl::Status RemoveTemporarySiblings(const std::string& path) {
  const std::string target = LinkTarget(path);
  const std::string directory = DirectoryOf(target);
  const std::string file = std::filesystem::path(target).filename().string();
  ASSIGN_OR_RETURN(const std::vector<std::string> names,
                   ListDirectory(directory));
  for (const std::string& name : names) {
    if (!IsTemporarySibling(name, file)) continue;
    RETURN_IF_ERROR(RemoveTree(absl::StrCat(directory, "/", name)));
  }
  return absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& directory) {
  const FileDescriptor opened(
      ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.is_open()) return ErrnoStatus("open directory", directory);
  // Some file systems (network ones) have nothing to sync here and give EINVAL.
  if (::fsync(opened.fd()) != 0 && errno != EINVAL) {
    return ErrnoStatus("sync directory", directory);
  }
  return absl::OkStatus();
}

absl::Status MakeDirectory(const std::string& path) {
  std::error_code error;
  const bool made = std::filesystem::create_directory(path, error);
  RETURN_IF_ERROR(ToStatus(error, "create directory", path));
  return made ? SyncDirectory(DirectoryOf(path)) : absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path) {
  if (!FileExists(path)) RETURN_IF_ERROR(MakeDirectories(DirectoryOf(path)));
  return MakeDirectory(path);
}

absl::StatusOr<bool> PathExists(const std::string& path) {
  if (::access(path.c_str(), F_OK) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return ErrnoStatus("look for", path);
}

bool FileExists(const std::string& path) {
  return PathExists(path).value_or(true);
}

absl::StatusOr<std::vector<std::string>> ListDirectory(
    const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  const std::filesystem::directory_iterator end;
  for (; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  RETURN_IF_ERROR(ToStatus(error, "list directory", directory));
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return ToStatus(error, "remove", path);
}

absl::StatusOr<std::vector<std::string>> Glob(const std::string& pattern) {
  glob_t found = {};
  const absl::Cleanup free_found = [&found] { ::globfree(&found); };
  const int code = ::glob(pattern.c_str(), GLOB_ERR, nullptr, &found);
  if (code == GLOB_NOMATCH) return std::vector<std::string>();
  if (code != 0) return ErrnoStatus("list files matching", pattern);
  return std::vector<std::string>(found.gl_pathv,
                                  found.gl_pathv + found.gl_pathc);
}

std::string UserPath(absl::string_view path) {
  if (const char* home = std::getenv("HOME");
      home != nullptr && absl::StartsWith(path, "~/")) {
    return absl::StrCat(home, path.substr(1));
  }
  const char* directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory == nullptr || absl::StartsWith(path, "/")) {
    return std::string(path);
  }
  return absl::StrCat(directory, "/", path);
}

absl::StatusOr<std::string> UserCacheDir() {
  // The XDG Base Directory Specification says to ignore relative values.
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') {
    return absl::StrCat(cache, "/tessera");
  }
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') {
    return absl::StrCat(home, "/.cache/tessera");
  }
  return absl::FailedPreconditionError(
      "no cache folder: neither XDG_CACHE_HOME nor HOME is set to an absolute "
      "path; set one of them");
}

}  // namespace tessera
