#ifndef FRAMEWORK_CHECKPOINT_DURABLE_FILE_H_
#define FRAMEWORK_CHECKPOINT_DURABLE_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/base/file_descriptor.h"

namespace tessera {

// Called before every operation that changes the disk: "create x", "make x",
// "write x", "fsync x", "rename x", "remove x". Tests kill the process in it to
// show that an interrupted save never loses earlier checkpoints. Otherwise
// null.
using WritePointHook = std::function<void(absl::string_view operation)>;

// A new file that is on the disk, not only in the page cache, once
// SyncAndClose() has returned OK. Errors name the path and the system's reason;
// a full disk is FailedPrecondition.
class DurableFile {
 public:
  // AlreadyExists if `path` exists.
  static absl::StatusOr<std::unique_ptr<DurableFile>> Create(
      std::string path, WritePointHook hook = nullptr);

  absl::Status WriteAt(uint64_t offset, absl::string_view bytes);
  absl::Status SyncAndClose();

  const std::string& path() const { return path_; }

 private:
  DurableFile(std::string path, WritePointHook hook, int descriptor);

  const std::string path_;
  const WritePointHook hook_;
  FileDescriptor descriptor_;
};

// Creates `path` with `content` and syncs it.
absl::Status WriteDurably(const std::string& path, absl::string_view content,
                          const WritePointHook& hook);
absl::Status RenamePath(const std::string& from, const std::string& to,
                        const WritePointHook& hook);
// The functions of framework/base/file.h, each preceded by a call of the hook.
absl::Status MakeDirectory(const std::string& path, const WritePointHook& hook);
absl::Status SyncDirectory(const std::string& path, const WritePointHook& hook);
absl::Status RemoveTree(const std::string& path, const WritePointHook& hook);

}  // namespace tessera

#endif  // FRAMEWORK_CHECKPOINT_DURABLE_FILE_H_
