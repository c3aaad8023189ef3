#ifndef TESTS_FRAMEWORK_CHECKPOINT_DISK_JOURNAL_H_
#define TESTS_FRAMEWORK_CHECKPOINT_DISK_JOURNAL_H_

#include <set>
#include <string>
#include <vector>

namespace tessera {

// Records what a loss of power could remove from a folder. A program that links
// this library gets its own open(), write(), pwrite(), fsync(), fdatasync(),
// mkdir(), rename() and renameat(), which call the system's and are recorded
// here. Other calls are not seen. At most one journal at a time, from one
// thread.
class DiskJournal {
 public:
  // Watches everything below `root`, which must exist.
  explicit DiskJournal(const std::string& root);
  ~DiskJournal();
  DiskJournal(const DiskJournal&) = delete;
  DiskJournal& operator=(const DiskJournal&) = delete;

  // Operations in an order in which a loss of power can lose data:
  //   a file or folder was renamed to its final name before it was synced
  //   a folder was synced before the files in it
  const std::vector<std::string>& faults() const { return faults_; }
  // What a loss of power would still remove: file contents and names of files
  // and folders that are not synced, except removed ones.
  std::vector<std::string> Unsynced() const;

  int syncs() const { return syncs_; }
  int renames() const { return renames_; }

  // Called by this library's replacements of the system's functions.
  void Created(const std::string& path, bool is_file);
  void Written(const std::string& path);
  void Synced(const std::string& path);
  void Renamed(const std::string& from, const std::string& to);

 private:
  bool Watches(const std::string& path) const;

  const std::string root_;
  std::set<std::string> contents_;  // unsynced, by path
  std::set<std::string> names_;     // with unsynced folders
  std::vector<std::string> faults_;
  int syncs_ = 0;
  int renames_ = 0;
};

}  // namespace tessera

#endif  // TESTS_FRAMEWORK_CHECKPOINT_DISK_JOURNAL_H_
