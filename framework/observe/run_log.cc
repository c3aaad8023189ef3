#include "framework/observe/run_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"

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

// Removes what follows the last line end.
absl::Status RemoveTornLine(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const size_t complete = text.rfind('\n') + 1;  // npos + 1 is 0
  if (complete == text.size()) return absl::OkStatus();
  if (truncate(path.c_str(), complete) == 0) return absl::OkStatus();
  return SystemError(errno, absl::StrCat("cannot mend ", path));
}

}  // namespace

RunLog::RunLog(std::string path, int descriptor, Clock clock)
    : path_(std::move(path)),
      descriptor_(descriptor),
      clock_(std::move(clock)) {}

RunLog::~RunLog() { close(descriptor_); }

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

absl::Status RunLog::Log(const StepRecord& record) {
  Json fields = {
      {"step", record.step},           {"loss", record.loss},
      {"grad_norm", record.grad_norm}, {"lr", record.lr},
      {"step_ms", record.step_ms},     {"tokens_per_s", record.tokens_per_s},
      {"tflops", record.tflops}};
  if (record.mfu.has_value()) fields["mfu"] = *record.mfu;
  if (record.peak_gib.has_value()) fields["peak_gib"] = *record.peak_gib;
  if (record.loss_scale.has_value()) fields["loss_scale"] = *record.loss_scale;
  return Log("step", fields);
}

absl::Status RunLog::Log(const EvalRecord& record) {
  return Log("eval", {{"step", record.step}, {"loss", record.loss}});
}

absl::Status RunLog::Log(absl::string_view type, const Json& fields) {
  Json record = {{"type", std::string(type)},
                 {"time", absl::ToUnixMicros(clock_()) * 1e-6}};
  record.update(fields);
  const std::string line =
      record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  const ssize_t written = write(descriptor_, line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return absl::OkStatus();
  // A regular file takes less than everything only when the disk is full.
  return SystemError(written < 0 ? errno : ENOSPC,
                     absl::StrCat("cannot write ", path_));
}

}  // namespace tessera
