#include "bench/studies/cell_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/measure/attention_case.h"
#include "bench/measure/cell_measurement.h"
#include "bench/studies/study_loader.h"
#include "framework/base/exit_code.h"
#include "framework/base/file.h"
#include "framework/base/file_descriptor.h"
#include "framework/base/json.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"
#include "trainers/build_info.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTickMs = 100;  // between two looks at a stop signal

std::string StatusName(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return "OOM";
  return absl::IsUnimplemented(status) ? "UNSUPPORTED" : "FAILED";
}

// One worker, from its start to its end.
class Worker {
 public:
  ~Worker() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Wait();
    }
  }

  absl::Status Start(std::vector<std::string> arguments,
                     const std::vector<int>& cells) {
    std::array<int, 2> ends;
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
      return SystemError(errno, "cannot make a pipe");
    }
    pipe_ = FileDescriptor(ends[0]);
    const FileDescriptor workers_end(ends[1]);
    // A number that no descriptor of the worker has by accident.
    constexpr int kWorkersEnd = 200;
    arguments.push_back(absl::StrCat("--worker_pipe=", kWorkersEnd));
    arguments.push_back(
        absl::StrCat("--worker_cells=", absl::StrJoin(cells, ",")));
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, workers_end.fd(), kWorkersEnd);
    const int error =
        posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error == 0) return absl::OkStatus();
    pid_ = -1;
    return SystemError(error, absl::StrCat("cannot run ", argv[0]));
  }

  // The next whole line; empty if there is none yet. NotFound when the worker
  // has closed its end.
  absl::StatusOr<std::string> ReadLine() {
    pollfd ready = {.fd = pipe_.fd(), .events = POLLIN};
    const size_t end = text_.find('\n');
    if (end != std::string::npos) {
      std::string line = text_.substr(0, end);
      text_.erase(0, end + 1);
      return line;
    }
    if (poll(&ready, 1, kTickMs) <= 0) return "";
    std::array<char, 65536> part;
    const ssize_t count = read(pipe_.fd(), part.data(), part.size());
    if (count == 0) return absl::NotFoundError("the worker's pipe has ended");
    if (count > 0) text_.append(part.data(), count);
    return "";
  }

  // Waits for its end, and says how that was.
  std::string Wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    if (WIFSIGNALED(status)) {
      return absl::StrCat("the process died of signal ", WTERMSIG(status), ", ",
                          strsignal(WTERMSIG(status)));
    }
    return absl::StrCat("the process ended with exit code ",
                        WEXITSTATUS(status));
  }

 private:
  pid_t pid_ = -1;
  FileDescriptor pipe_;
  std::string text_;
};

}  // namespace

absl::Status RunCells(
    const Study& study, const std::vector<int>& cells,
    const std::vector<std::string>& arguments, absl::FunctionRef<int()> stopped,
    absl::FunctionRef<absl::Status(int cell, const Json&)> done) {
  std::vector<int> left = cells;
  while (!left.empty()) {
    std::vector<int> share = left;
    if (study.config.fresh_processes()) share.resize(1);
    Worker worker;
    RETURN_IF_ERROR(worker.Start(arguments, share));
    bool begun = false;
    int current = -1;  // the cell that the worker is in, if it has said so
    while (true) {
      if (const int signo = stopped(); signo != 0) return SignalStatus(signo);
      const absl::StatusOr<std::string> line = worker.ReadLine();
      if (!line.ok()) break;
      if (line->empty()) continue;
      Json record = Json::parse(*line);
      const int cell = record["cell"];
      begun = true;
      // A worker that dies may say that a cell is done and not which is next:
      // more than the pipe holds is written in parts.
      current = record.contains("status") ? -1 : cell;
      if (current >= 0) continue;
      record.erase("cell");
      left.erase(std::find(left.begin(), left.end(), cell));
      RETURN_IF_ERROR(done(cell, record));
    }
    const std::string end = worker.Wait();
    const auto next = std::find_if(share.begin(), share.end(), [&](int c) {
      return std::find(left.begin(), left.end(), c) != left.end();
    });
    if (next == share.end()) continue;
    if (const int signo = stopped(); signo != 0) return SignalStatus(signo);
    if (!begun) {
      return absl::InternalError(
          absl::StrCat("a worker ended before its first cell: ", end));
    }
    const int crashed = current >= 0 ? current : *next;
    left.erase(std::find(left.begin(), left.end(), crashed));
    RETURN_IF_ERROR(done(crashed, {{"status", "CRASHED"}, {"message", end}}));
  }
  return absl::OkStatus();
}

absl::Status WorkOnCells(const Study& study, const std::vector<int>& cells,
                         const std::string& folder, int pipe) {
  // Does not outlive the study.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto line = [](const Json& record) { return DumpJson(record) + "\n"; };
  std::string report;
  for (const int number : cells) {
    if (number < 0 || number >= static_cast<int>(study.cells.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("--worker_cells: there is no cell ", number));
    }
    // One write ends a cell and begins the next, so that a worker that dies is
    // in a cell.
    report += line({{"cell", number}});
    RETURN_IF_ERROR(WriteAll(pipe, report, "the study's pipe"));
    const StudyCell& cell = study.cells[number];
    const absl::Time begin = MonotonicNow();
    const absl::StatusOr<Json> figures = MeasureCell(study, cell, folder);
    // Only now: how long a process takes to open its device may be a figure.
    ASSIGN_OR_RETURN(const DeviceInfo device, OpenBenchDevice());
    ASSIGN_OR_RETURN(const std::string config, PrintCell(study, cell));
    Json record = {{"cell", number}};
    record["status"] = figures.ok() ? "OK" : StatusName(figures.status());
    record["device"] = device.name;
    record["build"] = BuildSummary();
    record["config"] = config;
    record["seconds"] = absl::ToDoubleSeconds(MonotonicNow() - begin);
    if (figures.ok()) {
      record["figures"] = *figures;
    } else {
      record["message"] = std::string(figures.status().message());
    }
    report = line(record);
  }
  return WriteAll(pipe, report, "the study's pipe");
}

}  // namespace tessera
