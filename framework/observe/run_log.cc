#include "framework/observe/run_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/json.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"
#include "framework/observe/memory_record_json.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

Json HeaderFields(const RunHeader& header) {
  return {{"config", header.config_text},
          {"config_hash", header.config_hash},
          {"build", header.build},
          {"device", header.device}};
}

absl::StatusOr<int> OpenToAppend(const std::string& path, int flags) {
  const int descriptor = open(
      path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | flags, 0644);
  if (descriptor >= 0) return descriptor;
  return SystemError(errno, absl::StrCat("cannot open ", path));
}

// Returns the length of the file up to and including its last newline. Reads
// from the end, because a log may be large.
absl::StatusOr<off_t> CompleteBytes(int descriptor, off_t size,
                                    const std::string& path) {
  std::array<char, 4096> block;
  for (off_t end = size; end > 0;) {
    const off_t begin = std::max<off_t>(0, end - block.size());
    const ssize_t count = pread(descriptor, block.data(), end - begin, begin);
    if (count < 0 && errno == EINTR) continue;
    if (count != end - begin) {
      return SystemError(count < 0 ? errno : EIO,
                         absl::StrCat("cannot read ", path));
    }
    const absl::string_view text(block.data(), count);
    const size_t line_end = text.rfind('\n');
    if (line_end != absl::string_view::npos) return begin + line_end + 1;
    end = begin;
  }
  return 0;
}

// Removes everything after the last newline.
absl::Status RemoveTornLine(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat info;
  if (!file.is_open() || fstat(file.fd(), &info) != 0) {
    return SystemError(errno, absl::StrCat("cannot open ", path));
  }
  ASSIGN_OR_RETURN(const off_t complete,
                   CompleteBytes(file.fd(), info.st_size, path));
  if (complete == info.st_size) return absl::OkStatus();
  if (ftruncate(file.fd(), complete) == 0) return absl::OkStatus();
  return SystemError(errno, absl::StrCat("cannot repair ", path));
}

}  // namespace

RunLog::RunLog(std::string path, int descriptor, Clock clock)
    : path_(std::move(path)),
      descriptor_(descriptor),
      clock_(std::move(clock)) {}

absl::StatusOr<std::unique_ptr<RunLog>> RunLog::Create(const std::string& path,
                                                       const RunHeader& header,
                                                       Clock clock) {
  ASSIGN_OR_RETURN(const int descriptor, OpenToAppend(path, O_EXCL));
  auto log = absl::WrapUnique(new RunLog(path, descriptor, std::move(clock)));
  RETURN_IF_ERROR(log->Log("run", HeaderFields(header)));
  return log;
}

absl::StatusOr<std::unique_ptr<RunLog>> RunLog::Resume(const std::string& path,
                                                       const RunHeader& header,
                                                       const ResumePoint& point,
                                                       Clock clock) {
  if (FileExists(path)) RETURN_IF_ERROR(RemoveTornLine(path));
  ASSIGN_OR_RETURN(const int descriptor, OpenToAppend(path, 0));
  auto log = absl::WrapUnique(new RunLog(path, descriptor, std::move(clock)));
  Json fields = {{"step", point.step}, {"checkpoint", point.checkpoint}};
  fields.update(HeaderFields(header));
  RETURN_IF_ERROR(log->Log("resume", fields));
  return log;
}

absl::Status RunLog::OnStepLogged(const StepRecord& record) {
  Json fields = {{"step", record.step}};
  const auto add = [&](const auto& table, Json* to) {
    for (const StepField& field : table) {
      if (const auto value = field.read(record)) (*to)[field.name] = *value;
    }
  };
  add(kStepFields, &fields);
  for (const PhaseTime& phase : record.phases) {
    fields["phases_ms"][phase.path] = phase.ms;
  }
  if (record.gpu.has_value()) {
    add(kGpuFields, &fields["gpu"]);
    fields["gpu"]["throttle_reasons"] = record.gpu->throttle_reasons;
  }
  if (record.traced_steps.has_value()) {
    fields["traced_steps"] = *record.traced_steps;
  }
  RETURN_IF_ERROR(Log("step", fields));
  if (!record.memory.has_value()) return absl::OkStatus();
  return Log("memory", ToJson(*record.memory));
}

absl::Status RunLog::OnValidationEnd(const EvalRecord& record) {
  Json fields = {{"step", record.step}};
  if (record.set != kValidationName) fields["set"] = record.set;
  fields["loss"] = record.loss;
  if (record.bits_per_byte.has_value()) {
    fields["bits_per_byte"] = *record.bits_per_byte;
  }
  return Log("eval", fields);
}

absl::Status RunLog::OnSavedBytes(const SavedBytesRecord& record) {
  return Log("saved", {{"step", record.step}, {"bytes", record.bytes}});
}

absl::Status RunLog::Log(absl::string_view type, const Json& fields) {
  Json record = {{"type", std::string(type)},
                 {"time", absl::ToUnixMicros(clock_()) * 1e-6}};
  record.update(fields);
  const std::string line = DumpJson(record) + "\n";
  RETURN_IF_ERROR(CheckInPlace());
  return WriteAll(descriptor_.fd(), line, path_);
}

absl::Status RunLog::CheckInPlace() const {
  struct stat opened, named;
  if (fstat(descriptor_.fd(), &opened) != 0) {
    return SystemError(errno, absl::StrCat("cannot write ", path_));
  }
  if (stat(path_.c_str(), &named) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) {
      return SystemError(errno, absl::StrCat("cannot write ", path_));
    }
  } else if (opened.st_dev == named.st_dev && opened.st_ino == named.st_ino) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(path_, " was removed, moved or replaced during the run"));
}

}  // namespace tessera
