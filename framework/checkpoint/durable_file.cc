#include "framework/checkpoint/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"

namespace tessera {
namespace {

void AtWritePoint(const WritePointHook& hook, absl::string_view verb,
                  absl::string_view path) {
  if (hook) hook(absl::StrCat(verb, " ", path));
}

absl::Status StatusFromErrno(int error, absl::string_view action) {
  return SystemError(
      error,
      absl::StrCat("cannot ", action,
                   IsFullDisk(error) ? " (free disk space; a run also keeps "
                                       "fewer checkpoints with a lower "
                                       "checkpoint.keep_last)"
                                     : ""));
}

}  // namespace

DurableFile::DurableFile(std::string path, WritePointHook hook, int descriptor)
    : path_(std::move(path)), hook_(std::move(hook)), descriptor_(descriptor) {}

absl::StatusOr<std::unique_ptr<DurableFile>> DurableFile::Create(
    std::string path, WritePointHook hook) {
  AtWritePoint(hook, "create", path);
  const int descriptor =
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    return StatusFromErrno(errno, absl::StrCat("create ", path));
  }
  return absl::WrapUnique(
      new DurableFile(std::move(path), std::move(hook), descriptor));
}

absl::Status DurableFile::WriteAt(uint64_t offset, absl::string_view bytes) {
  AtWritePoint(hook_, "write", path_);
  while (!bytes.empty()) {
    const ssize_t written =
        pwrite(descriptor_.fd(), bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return StatusFromErrno(errno, absl::StrCat("write ", path_));
    }
    offset += written;
    bytes.remove_prefix(written);
  }
  return absl::OkStatus();
}

absl::Status DurableFile::SyncAndClose() {
  AtWritePoint(hook_, "fsync", path_);
  if (fsync(descriptor_.fd()) != 0) {
    return StatusFromErrno(errno, absl::StrCat("fsync ", path_));
  }
  // A network file system may report a failed write only here.
  if (descriptor_.Close() != 0) {
    return StatusFromErrno(errno, absl::StrCat("close ", path_));
  }
  return absl::OkStatus();
}

absl::Status WriteDurably(const std::string& path, absl::string_view content,
                          const WritePointHook& hook) {
  ASSIGN_OR_RETURN(auto file, DurableFile::Create(path, hook));
  RETURN_IF_ERROR(file->WriteAt(0, content));
  return file->SyncAndClose();
}

absl::Status RenamePath(const std::string& from, const std::string& to,
                        const WritePointHook& hook) {
  AtWritePoint(hook, "rename", from);
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    return StatusFromErrno(errno, absl::StrCat("rename ", from, " to ", to));
  }
  return absl::OkStatus();
}

absl::Status MakeDirectory(const std::string& path,
                           const WritePointHook& hook) {
  AtWritePoint(hook, "make", path);
  return MakeDirectory(path);
}

absl::Status SyncDirectory(const std::string& path,
                           const WritePointHook& hook) {
  AtWritePoint(hook, "fsync", path);
  return SyncDirectory(path);
}

absl::Status RemoveTree(const std::string& path, const WritePointHook& hook) {
  AtWritePoint(hook, "remove", path);
  return RemoveTree(path);
}

}  // namespace tessera
