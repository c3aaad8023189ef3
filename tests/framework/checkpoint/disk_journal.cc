#include "tests/framework/checkpoint/disk_journal.h"

// Not <fcntl.h>, whose inline open() would conflict with this file's.
#include <dlfcn.h>
#include <limits.h>
#include <linux/fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace tessera {
namespace {

DiskJournal* journal = nullptr;  // the active journal, if any

template <typename Function>
Function* System(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::string FolderOf(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

bool IsBelow(const std::string& path, const std::string& folder) {
  return path.rfind(folder + "/", 0) == 0;
}

std::string PathOf(int descriptor) {
  std::array<char, PATH_MAX> path;
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = readlink(link.c_str(), path.data(), path.size());
  return size < 0 ? "" : std::string(path.data(), size);
}

// `path` without symbolic links and ".."; it need not exist.
std::string Canonical(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : FolderOf(path);
  std::array<char, PATH_MAX> real;
  if (realpath(folder.c_str(), real.data()) == nullptr) return path;
  return std::string(real.data()) + "/" +
         path.substr(slash + 1);  // npos + 1 is 0
}

bool Exists(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0;
}

}  // namespace

DiskJournal::DiskJournal(const std::string& root)
    : root_(FolderOf(Canonical(root + "/."))) {
  journal = this;
}

DiskJournal::~DiskJournal() { journal = nullptr; }

bool DiskJournal::Watches(const std::string& path) const {
  return IsBelow(path, root_);
}

std::vector<std::string> DiskJournal::Unsynced() const {
  std::vector<std::string> unsynced;
  for (const std::string& path : contents_) {
    if (Exists(path)) unsynced.push_back("contents of " + path);
  }
  for (const std::string& path : names_) {
    if (Exists(path)) unsynced.push_back("name " + path);
  }
  return unsynced;
}

void DiskJournal::Created(const std::string& path, bool is_file) {
  if (!Watches(path)) return;
  names_.insert(path);
  if (is_file) contents_.insert(path);
}

void DiskJournal::Written(const std::string& path) {
  if (Watches(path)) contents_.insert(path);
}

void DiskJournal::Synced(const std::string& path) {
  if (path != root_ && !Watches(path)) return;
  ++syncs_;
  contents_.erase(path);
  for (const std::string& file : contents_) {
    if (FolderOf(file) == path && Exists(file)) {
      faults_.push_back(path + " is synced before " + file);
    }
  }
  std::erase_if(
      names_, [&](const std::string& name) { return FolderOf(name) == path; });
}

void DiskJournal::Renamed(const std::string& from, const std::string& to) {
  if (!Watches(to)) return;
  ++renames_;
  const auto check = [&](const std::string& path) {
    if (!Exists(to + path.substr(from.size()))) return;  // removed before
    faults_.push_back(path + " is renamed to " + to + " before it is synced");
  };
  for (const std::string& path : contents_) {
    if (path == from || IsBelow(path, from)) check(path);
  }
  for (const std::string& path : names_) {
    if (IsBelow(path, from)) check(path);
  }
  names_.erase(from);
  names_.insert(to);
}

}  // namespace tessera

extern "C" {

static int OpenAndNote(const char* name, const char* path, int flags,
                       mode_t mode) {
  const bool is_new = (flags & O_CREAT) != 0 && !tessera::Exists(path);
  const int descriptor =
      tessera::System<int(const char*, int, ...)>(name)(path, flags, mode);
  if (tessera::journal != nullptr && is_new && descriptor >= 0) {
    tessera::journal->Created(tessera::PathOf(descriptor), /*is_file=*/true);
  }
  return descriptor;
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, int) : 0;
  va_end(arguments);
  return OpenAndNote("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, int) : 0;
  va_end(arguments);
  return OpenAndNote("open64", path, flags, mode);
}

ssize_t write(int descriptor, const void* bytes, size_t size) {
  if (tessera::journal != nullptr) {
    tessera::journal->Written(tessera::PathOf(descriptor));
  }
  return tessera::System<ssize_t(int, const void*, size_t)>("write")(
      descriptor, bytes, size);
}

ssize_t pwrite(int descriptor, const void* bytes, size_t size, off_t offset) {
  if (tessera::journal != nullptr) {
    tessera::journal->Written(tessera::PathOf(descriptor));
  }
  return tessera::System<ssize_t(int, const void*, size_t, off_t)>("pwrite")(
      descriptor, bytes, size, offset);
}

int fsync(int descriptor) {
  const int result = tessera::System<int(int)>("fsync")(descriptor);
  if (tessera::journal != nullptr && result == 0) {
    tessera::journal->Synced(tessera::PathOf(descriptor));
  }
  return result;
}

int fdatasync(int descriptor) {
  const int result = tessera::System<int(int)>("fdatasync")(descriptor);
  if (tessera::journal != nullptr && result == 0) {
    tessera::journal->Synced(tessera::PathOf(descriptor));
  }
  return result;
}

int mkdir(const char* path, mode_t mode) noexcept {
  const int result =
      tessera::System<int(const char*, mode_t)>("mkdir")(path, mode);
  if (tessera::journal != nullptr && result == 0) {
    tessera::journal->Created(tessera::Canonical(path), /*is_file=*/false);
  }
  return result;
}

int rename(const char* from, const char* to) noexcept {
  const std::string source = tessera::Canonical(from);
  const int result =
      tessera::System<int(const char*, const char*)>("rename")(from, to);
  if (tessera::journal != nullptr && result == 0) {
    tessera::journal->Renamed(source, tessera::Canonical(to));
  }
  return result;
}

int renameat(int from_folder, const char* from, int to_folder,
             const char* to) noexcept {
  const auto at = [](int folder, const char* path) {
    return path[0] == '/' || folder == AT_FDCWD
               ? tessera::Canonical(path)
               : tessera::Canonical(tessera::PathOf(folder) + "/" + path);
  };
  const std::string source = at(from_folder, from);
  const int result = tessera::System<int(int, const char*, int, const char*)>(
      "renameat")(from_folder, from, to_folder, to);
  if (tessera::journal != nullptr && result == 0) {
    tessera::journal->Renamed(source, at(to_folder, to));
  }
  return result;
}

}  // extern "C"
