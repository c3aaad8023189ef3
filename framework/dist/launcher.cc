#include "framework/dist/launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "framework/base/exit_code.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/dist/line_pipe.h"
#include "framework/dist/secret.h"
#include "framework/dist/tcp.h"

namespace tessera {
namespace {

// Ends of ranks are seen immediately, as the end of their pipes. Everything
// else can wait for a tick.
constexpr absl::Duration kTick = absl::Milliseconds(100);
// How long the rank that caused a failure has to end, once another has ended
// because of it.
constexpr absl::Duration kCauseGrace = absl::Seconds(5);
// Supervisors and terminals send a signal to a process group and to each of its
// members. Signals within this time of the first are the same request.
constexpr absl::Duration kRepeatWindow = absl::Seconds(1);

absl::Status CheckCanRun(const LaunchOptions& options) {
  if (options.nproc < 1 || options.command.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot launch ", options.nproc, " processes of ",
        options.command.empty() ? "no program" : options.command[0]));
  }
  const std::string& program = options.command[0];
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(program, error);
  if (!is_folder && ::access(program.c_str(), X_OK) == 0) return {};
  return absl::NotFoundError(absl::StrCat(
      "cannot run ", program, ": ", std::strerror(is_folder ? EISDIR : errno)));
}

// The NAME=VALUE strings of one rank.
std::vector<std::string> EnvironmentOfRank(const LaunchOptions& options,
                                           int rank, int port,
                                           const std::string& secret) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos) continue;
    variables[std::string(text.substr(0, equals))] =
        std::string(text.substr(equals + 1));
  }
  const std::string nproc = absl::StrCat(options.nproc);
  variables["RANK"] = variables["LOCAL_RANK"] = absl::StrCat(rank);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = nproc;
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = absl::StrCat(port);
  variables["TESSERA_LAUNCH"] = "1";
  variables["TESSERA_SECRET"] = secret;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  // With one thread per core in each, the ranks would compete for the cores.
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  variables.try_emplace("OMP_NUM_THREADS",
                        absl::StrCat(std::max(1, cores / options.nproc)));
  for (const auto& [name, value] : options.environment) {
    variables[name] = value;
  }
  std::vector<std::string> environment;
  for (const auto& [name, value] : variables) {
    environment.push_back(absl::StrCat(name, "=", value));
  }
  return environment;
}

std::vector<char*> NullTerminated(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The processes of one run, from fork() to wait().
class RankProcesses {
 public:
  explicit RankProcesses(const LaunchOptions& options) : options_(options) {}
  ~RankProcesses() {
    SignalAll(SIGKILL);
    while (running_ > 0) Reap(/*wait=*/true);
  }

  absl::Status Start(int port, const sigset_t& signal_mask);
  // Runs until all ranks have ended. `signal_fd` delivers this process's
  // signals.
  absl::StatusOr<int> Run(int signal_fd);

 private:
  struct Rank {
    pid_t pid = -1;
    bool ended = false;
    std::unique_ptr<LinePipe> out, err;
  };

  absl::StatusOr<Rank> StartOne(int rank, int port,
                                const sigset_t& signal_mask);
  void Say(absl::string_view message);
  void SignalAll(int signo);
  void Wait(int signal_fd);
  void HandleSignal(int signal_fd);
  void Reap(bool wait);
  void Ended(int rank, int wait_status);
  void EndAll(absl::string_view reason, int exit_code);
  void CheckDeadlines();

  const LaunchOptions& options_;
  // Keeps other users of this machine out of the run.
  const std::string secret_ = NewSecret();
  std::vector<Rank> ranks_;
  int running_ = 0;
  int passed_on_ = 0;  // the signal that was forwarded to the ranks
  absl::Time kill_on_signal_from_ = absl::InfiniteFuture();
  bool ending_all_ = false;
  int exit_code_ = 0;
  // How the first rank that failed because of another one ended, while the
  // launcher waits for that other rank.
  std::string consequence_;
  absl::Time cause_by_ = absl::InfiniteFuture();
  absl::Time timeout_at_ = absl::InfiniteFuture();
  absl::Time kill_at_ = absl::InfiniteFuture();
};

// Runs in the child, between fork() and exec().
[[noreturn]] void ExecRank(char* const* command, char* const* environment,
                           const sigset_t& signal_mask, pid_t launcher) {
  // A separate group: Ctrl-C reaches a rank only once, from the launcher, and a
  // signal also reaches the processes that the rank has started.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(kCannotRunExitCode);
  ::sigprocmask(SIG_SETMASK, &signal_mask, nullptr);
  ::execve(command[0], command, environment);
  constexpr absl::string_view kMessage = "cannot execute the program\n";
  if (::write(STDERR_FILENO, kMessage.data(), kMessage.size())) {
  }
  ::_exit(kCannotRunExitCode);
}

absl::StatusOr<RankProcesses::Rank> RankProcesses::StartOne(
    int rank, int port, const sigset_t& signal_mask) {
  Rank started;
  const std::string label = absl::StrCat("[", rank, "] ");
  ASSIGN_OR_RETURN(started.out,
                   LinePipe::Create(label, options_.out, options_.out_kind));
  ASSIGN_OR_RETURN(started.err,
                   LinePipe::Create(label, options_.err, OutputKind::kConsole));
  std::vector<std::string> command = options_.command;
  std::vector<std::string> environment =
      EnvironmentOfRank(options_, rank, port, secret_);
  const std::vector<char*> argv = NullTerminated(command);
  const std::vector<char*> envp = NullTerminated(environment);
  const pid_t launcher = ::getpid();
  started.pid = ::fork();
  if (started.pid < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start rank ", rank, ": ", std::strerror(errno)));
  }
  if (started.pid == 0) {
    started.out->BecomeInChild(STDOUT_FILENO);
    started.err->BecomeInChild(STDERR_FILENO);
    ExecRank(argv.data(), envp.data(), signal_mask, launcher);
  }
  // Here, too, because a signal may be sent before the child has run.
  ::setpgid(started.pid, started.pid);
  started.out->CloseWriteEnd();
  started.err->CloseWriteEnd();
  return started;
}

absl::Status RankProcesses::Start(int port, const sigset_t& signal_mask) {
  timeout_at_ = MonotonicNow() + options_.timeout;
  for (int rank = 0; rank < options_.nproc; ++rank) {
    ASSIGN_OR_RETURN(Rank started, StartOne(rank, port, signal_mask));
    ranks_.push_back(std::move(started));
    ++running_;
  }
  return absl::OkStatus();
}

absl::StatusOr<int> RankProcesses::Run(int signal_fd) {
  while (running_ > 0) {
    Wait(signal_fd);
    HandleSignal(signal_fd);
    Reap(/*wait=*/false);
    CheckDeadlines();
  }
  if (!consequence_.empty()) EndAll(consequence_, kPeerIsGoneExitCode);
  for (Rank& rank : ranks_) {
    rank.out->Drain();
    rank.err->Drain();
    if (exit_code_ == 0) RETURN_IF_ERROR(rank.out->status());
  }
  return exit_code_;
}

void RankProcesses::Say(absl::string_view message) {
  std::fprintf(options_.err, "launch: %s\n", std::string(message).c_str());
  std::fflush(options_.err);
}

void RankProcesses::SignalAll(int signo) {
  for (const Rank& rank : ranks_) {
    if (!rank.ended) ::kill(-rank.pid, signo);
  }
}

void RankProcesses::Wait(int signal_fd) {
  std::vector<pollfd> fds = {{.fd = signal_fd, .events = POLLIN}};
  for (const Rank& rank : ranks_) {
    for (const LinePipe* pipe : {rank.out.get(), rank.err.get()}) {
      if (pipe->open()) fds.push_back({.fd = pipe->fd(), .events = POLLIN});
    }
  }
  ::poll(fds.data(), fds.size(),
         static_cast<int>(absl::ToInt64Milliseconds(kTick)));
  for (Rank& rank : ranks_) {
    rank.out->Drain();
    rank.err->Drain();
  }
}

void RankProcesses::HandleSignal(int signal_fd) {
  signalfd_siginfo received;
  while (::read(signal_fd, &received, sizeof(received)) == sizeof(received)) {
    const int signo = static_cast<int>(received.ssi_signo);
    const absl::Time now = MonotonicNow();
    if (passed_on_ == 0) {
      passed_on_ = signo;
      kill_on_signal_from_ = now + kRepeatWindow;
      Say(absl::StrCat("forwarding ", strsignal(signo),
                       "; send it again, after a second, to kill the ranks"));
      SignalAll(signo);
    } else if (now >= kill_on_signal_from_) {
      SignalAll(SIGKILL);
    }
  }
}

void RankProcesses::Reap(bool wait) {
  std::vector<std::pair<int, int>> ended;  // rank, wait status
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    if (ranks_[rank].ended) continue;
    int status = 0;
    if (::waitpid(ranks_[rank].pid, &status, wait ? 0 : WNOHANG) <= 0) continue;
    ranks_[rank].ended = true;
    --running_;
    ended.emplace_back(rank, status);
  }
  // If several ranks ended at the same time, a killed one is the cause, and
  // those that failed noticed its absence.
  std::stable_partition(ended.begin(), ended.end(), [](const auto& entry) {
    return WIFSIGNALED(entry.second);
  });
  for (const auto& [rank, status] : ended) Ended(rank, status);
}

void RankProcesses::Ended(int rank, int wait_status) {
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) return;
  const bool killed = WIFSIGNALED(wait_status);
  const int code = killed ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
  const int exit_code = killed ? SignalExitCode(code) : code;
  if (passed_on_ != 0 && exit_code == SignalExitCode(passed_on_) &&
      !ending_all_) {
    exit_code_ = exit_code;  // it was asked to end, like all ranks
    return;
  }
  const std::string how = killed ? absl::StrCat("was killed by signal ", code,
                                                " (", strsignal(code), ")")
                                 : absl::StrCat("exited with code ", code);
  const std::string what =
      absl::StrCat("rank ", rank, " of ", options_.nproc, " ", how);
  if (exit_code != kPeerIsGoneExitCode) {
    EndAll(what, exit_code);
  } else if (consequence_.empty()) {
    consequence_ = what;
    cause_by_ = MonotonicNow() + kCauseGrace;
    SignalAll(SIGCONT);  // the cause may be a suspended rank
  }
}

void RankProcesses::EndAll(absl::string_view reason, int exit_code) {
  if (ending_all_) return;  // the first failure was already reported
  ending_all_ = true;
  exit_code_ = exit_code;
  Say(running_ == 0 ? reason
                    : absl::StrCat(reason, "; ending the other ranks"));
  SignalAll(SIGTERM);
  SignalAll(SIGCONT);  // a suspended rank cannot handle the signal
  kill_at_ = MonotonicNow() + options_.grace;
}

void RankProcesses::CheckDeadlines() {
  if (running_ == 0) return;
  const absl::Time now = MonotonicNow();
  if (now >= timeout_at_) {
    EndAll(absl::StrCat("the run did not finish within --timeout=",
                        absl::FormatDuration(options_.timeout)),
           kTimeoutExitCode);
  }
  if (now >= cause_by_) EndAll(consequence_, kPeerIsGoneExitCode);
  if (now >= kill_at_) SignalAll(SIGKILL);
}

// The signals that are forwarded. SIGHUP stays ignored under nohup.
sigset_t HandledSignals() {
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const int signo : {SIGINT, SIGTERM, SIGUSR1}) {
    ::sigaddset(&handled, signo);
  }
  struct sigaction hangup;
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) ::sigaddset(&handled, SIGHUP);
  return handled;
}

}  // namespace

absl::StatusOr<int> Launch(const LaunchOptions& options) {
  RETURN_IF_ERROR(CheckCanRun(options));
  ASSIGN_OR_RETURN(const int port, FreeLoopbackPort());
  const sigset_t handled = HandledSignals();
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &handled, &before);
  const int signal_fd = ::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
  const absl::Cleanup restore = [&] {
    ::close(signal_fd);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
  };
  RankProcesses ranks(options);
  RETURN_IF_ERROR(ranks.Start(port, before));
  return ranks.Run(signal_fd);
}

}  // namespace tessera
