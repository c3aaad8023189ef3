#ifndef FRAMEWORK_OBSERVE_RUN_LOG_H_
#define FRAMEWORK_OBSERVE_RUN_LOG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "framework/base/file_descriptor.h"
#include "framework/observe/run_observer.h"
#include "framework/observe/step_record.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The contents of the log's first record.
struct RunHeader {
  std::string config_text;        // the resolved config as text proto
  std::string config_hash;        // equal for equal configs
  nlohmann::ordered_json build;   // versions of the program and its libraries
  nlohmann::ordered_json device;  // what it runs on
};

// Where a resumed run continued.
struct ResumePoint {
  int64_t step = 0;        // optimizer steps done
  std::string checkpoint;  // the checkpoint's folder
};

// Writes run.jsonl: one JSON object per line, append-only. Every record has
// "type" and "time" (Unix seconds):
//
//   {"type":"run","time":...,"config":"...","config_hash":"...",
//    "build":{...},"device":{...}}
//   {"type":"step","time":...,"step":10,"loss":...,"grad_norm":...}
//   {"type":"memory","time":...,"step":10,"phases":{...},"peak":{...},...}
//   {"type":"eval","time":...,"step":100,"loss":...,"bits_per_byte":...}
//   {"type":"eval","time":...,"step":100,"set":"code","loss":...}
//   {"type":"saved","time":...,"step":1,"bytes":...}
//   {"type":"init","time":...,"step":0,"checkpoint":"...","checkpoint_step":20}
//   {"type":"resume","time":...,"step":20,"checkpoint":...,"config":...}
//
// Numbers that are not finite are null. Each record is a whole line in one
// write(), so the log of a killed process is readable up to its last record.
// After a resume, earlier records of steps beyond its "step" are superseded.
class RunLog : public RunObserver {
 public:
  using Clock = std::function<absl::Time()>;

  // Creates a log. AlreadyExists if there is one: logs are never overwritten.
  static absl::StatusOr<std::unique_ptr<RunLog>> Create(
      const std::string& path, const RunHeader& header,
      Clock clock = absl::Now);
  // Opens an existing log for appending, or creates one. Removes an incomplete
  // last line, which a killed process may have left.
  static absl::StatusOr<std::unique_ptr<RunLog>> Resume(
      const std::string& path, const RunHeader& header,
      const ResumePoint& point, Clock clock = absl::Now);

  absl::Status OnStepLogged(const StepRecord& record) override;
  absl::Status OnValidationEnd(const EvalRecord& record) override;
  absl::Status OnSavedBytes(const SavedBytesRecord& record) override;

  // Appends a record of any other type. `fields` is an object without "type"
  // and "time".
  absl::Status Log(absl::string_view type,
                   const nlohmann::ordered_json& fields);
  // FailedPrecondition if the file is no longer at its path: the run's folder
  // was removed, moved or replaced. Every record is preceded by this check.
  absl::Status CheckInPlace() const;

 private:
  RunLog(std::string path, int descriptor, Clock clock);

  const std::string path_;
  const FileDescriptor descriptor_;
  const Clock clock_;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_RUN_LOG_H_
