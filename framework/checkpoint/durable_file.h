#ifndef FRAMEWORK_CHECKPOINT_DURABLE_FILE_H_
#define FRAMEWORK_CHECKPOINT_DURABLE_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Called right before every operation that changes the disk: "create x",
// "make x", "write x", "fsync x", "rename x", "remove x". A test kills the
// process in it to show that no point of a save loses the checkpoints before
// it. Null in every other use.
using WritePointHook = std::function<void(absl::string_view operation)>;

// A new file that is on the disk, not only in the page cache, once
// SyncAndClose() has returned OK. Errors name the path and the system's reason;
// a full disk is FailedPrecondition.
class DurableFile {
 public:
  // AlreadyExists where there is a file of that path.
  static absl::StatusOr<std::unique_ptr<DurableFile>> Create(
      std::string path, WritePointHook hook = nullptr);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  absl::Status WriteAt(uint64_t offset, absl::string_view bytes);
  absl::Status SyncAndClose();

  const std::string& path() const { return path_; }

 private:
  DurableFile(std::string path, WritePointHook hook, int descriptor);

  const std::string path_;
  const WritePointHook hook_;
  int descriptor_;  // -1 once closed
};

// Creates `path` with `content`, durably.
absl::Status WriteDurably(const std::string& path, absl::string_view content,
                          const WritePointHook& hook);
absl::Status RenamePath(const std::string& from, const std::string& to,
                        const WritePointHook& hook);
// Those of framework/base/file.h, with a write point in front.
absl::Status MakeDirectories(const std::string& path,
                             const WritePointHook& hook);
absl::Status SyncDirectory(const std::string& path, const WritePointHook& hook);
absl::Status RemoveTree(const std::string& path, const WritePointHook& hook);

}  // namespace tessera

#endif  // FRAMEWORK_CHECKPOINT_DURABLE_FILE_H_
