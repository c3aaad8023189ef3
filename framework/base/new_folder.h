#ifndef FRAMEWORK_BASE_NEW_FOLDER_H_
#define FRAMEWORK_BASE_NEW_FOLDER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// A folder that appears with all its files or not at all. Its files are written
// to a temporary sibling, which Commit() renames:
//
//   ASSIGN_OR_RETURN(NewFolder out, NewFolder::Begin(path));
//   RETURN_IF_ERROR(MakeDirectories(out.temporary()));
//   ...
//   RETURN_IF_ERROR(out.Commit());
class NewFolder {
 public:
  // AlreadyExists if `path` exists. Tries whether a folder with a file can be
  // created there, so that a program does not fail after an hour; leaves
  // nothing behind. Warns of temporary folders of other processes.
  static absl::StatusOr<NewFolder> Begin(absl::string_view path);
  // Removes the temporary folder.
  ~NewFolder();
  NewFolder(NewFolder&& other);

  // The temporary folder, which the caller creates.
  const std::string& temporary() const { return temporary_; }
  absl::Status Commit();

 private:
  explicit NewFolder(std::string path);

  std::string path_, temporary_;
};

// Removes temporary folders that killed processes left beside `path`. Only call
// this while no other process creates it.
absl::Status RemoveUnfinished(const std::string& path);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_NEW_FOLDER_H_
