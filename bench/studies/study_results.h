#ifndef BENCH_STUDIES_STUDY_RESULTS_H_
#define BENCH_STUDIES_STUDY_RESULTS_H_

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/studies/study_config.h"
#include "framework/base/file_descriptor.h"
#include "framework/base/file_lock.h"
#include "nlohmann/json.hpp"

namespace tessera {

// What measures cells.
struct StudyMachine {
  std::string device;  // DeviceInfo::name; only a resume needs it
  std::string build;
};

// results.jsonl of a study: a record of the study, then one for each cell that
// has run, in the order in which they did. A resume whose study is shown in
// another way adds a record of the study, too.
//
//   {"type":"study","name":"warm_up","time":...,"study":"...","build":"..."}
//   {"type":"cell","time":...,"cell":{"warmup":"0"},"status":"OK",
//    "device":"NVIDIA H200","build":"...","config":"...","seconds":1.5,
//    "figures":{...}}
//   {"type":"cell",...,"status":"OOM","message":"..."}
//
// The build names the commit (build_info.h); the config is everything that the
// cell runs.
//
// Status is OK, OOM, UNSUPPORTED (a backend or this build cannot run it),
// FAILED (what another try may not meet: a full disk, a lost GPU, a busy
// profiler), or CRASHED (the process died).
class StudyResults {
 public:
  // Starts a file in `folder`, or with `resume` continues one, whose study must
  // measure the same; titles, tables and plots may have changed. AlreadyExists
  // if there is one without `resume`; FailedPrecondition while another process
  // has it open. `wanted` are the numbers of the cells
  // that are to be measured; others keep their records.
  static absl::StatusOr<std::unique_ptr<StudyResults>> Open(
      const std::string& folder, const Study& study,
      const std::vector<int>& wanted, const StudyMachine& machine, bool resume);

  // What is measured again because it is of another device or build, or because
  // what the cell runs has changed, a line for each reason.
  const std::vector<std::string>& outdated() const { return outdated_; }

  // Whether a record of the wanted cell is there, of this machine and of what
  // the cell runs now; a crash or a failure is tried again.
  bool Has(const StudyCell& cell) const { return done_.count(cell.Name()) > 0; }
  // `record` has everything except type, time and cell.
  absl::Status Append(const StudyCell& cell,
                      const nlohmann::ordered_json& record);

 private:
  StudyResults(std::string path, int descriptor, FileLock lock)
      : path_(std::move(path)),
        descriptor_(descriptor),
        lock_(std::move(lock)) {}
  absl::Status Write(nlohmann::ordered_json record);

  const std::string path_;
  const FileDescriptor descriptor_;
  const FileLock lock_;
  std::set<std::string> done_;
  std::vector<std::string> outdated_;
};

}  // namespace tessera

#endif  // BENCH_STUDIES_STUDY_RESULTS_H_
