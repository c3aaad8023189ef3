#ifndef TESTS_FRAMEWORK_CHECKPOINT_DISK_JOURNAL_H_
#define TESTS_FRAMEWORK_CHECKPOINT_DISK_JOURNAL_H_

#include <set>
#include <string>
#include <vector>

namespace tessera {

// What a loss of power could take from a folder: a program that links this
// library has its own open(), write(), pwrite(), fsync(), fdatasync(), mkdir(),
// rename() and renameat(), which do what the system's do and note it here. Any
// other call is not seen. One at a time, for one thread.
class DiskJournal {
 public:
  // Watches everything below `root`, which exists.
  explicit DiskJournal(const std::string& root);
  ~DiskJournal();
  DiskJournal(const DiskJournal&) = delete;
  DiskJournal& operator=(const DiskJournal&) = delete;

  // What came in an order in which a loss of power loses data:
  //   a file or folder got its name by a rename before it was synced
  //   a folder was synced before the files in it
  const std::vector<std::string>& faults() const { return faults_; }
  // What a loss of power would still take: files with contents, and names of
  // files and folders, that are not synced. What was removed does not count.
  std::vector<std::string> Unsynced() const;

  int syncs() const { return syncs_; }
  int renames() const { return renames_; }

  // Called by this library's versions of the system's functions.
  void Created(const std::string& path, bool is_file);
  void Written(const std::string& path);
  void Synced(const std::string& path);
  void Renamed(const std::string& from, const std::string& to);

 private:
  bool Watches(const std::string& path) const;

  const std::string root_;
  std::set<std::string> contents_;  // unsynced, by path
  std::set<std::string> names_;     // whose folder was not synced since
  std::vector<std::string> faults_;
  int syncs_ = 0;
  int renames_ = 0;
};

}  // namespace tessera

#endif  // TESTS_FRAMEWORK_CHECKPOINT_DISK_JOURNAL_H_
