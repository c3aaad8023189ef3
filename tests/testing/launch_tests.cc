#include "tests/testing/launch_tests.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "framework/base/check.h"
#include "framework/base/monotonic_clock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

void Write(const LaunchedTests& launched, std::FILE* file) {
  std::fprintf(file, "%d %lld\n", launched.exit_code,
               static_cast<long long>(  // NOLINT: for printf
                   absl::ToInt64Nanoseconds(launched.elapsed)));
  std::fwrite(launched.output.data(), 1, launched.output.size(), file);
  std::fflush(file);
}

LaunchedTests Read(std::FILE* file) {
  LaunchedTests launched;
  long long nanoseconds = 0;  // NOLINT: for scanf
  std::rewind(file);
  EXPECT_EQ(std::fscanf(file, "%d %lld", &launched.exit_code, &nanoseconds), 2);
  launched.elapsed = absl::Nanoseconds(nanoseconds);
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), file)) {
    launched.output.append(buffer, n);
  }
  return launched;
}

}  // namespace

LaunchedTests LaunchTests(const std::string& filter, LaunchOptions options) {
  options.command = {"/proc/self/exe", absl::StrCat("--gtest_filter=", filter),
                     "--gtest_also_run_disabled_tests"};
  char* output = nullptr;
  size_t size = 0;
  options.out = options.err = open_memstream(&output, &size);
  const absl::Time start = MonotonicNow();
  const absl::StatusOr<int> exit_code = Launch(options);
  LaunchedTests launched;
  launched.elapsed = MonotonicNow() - start;
  std::fclose(options.out);
  launched.output.assign(output, size);
  std::free(output);
  EXPECT_TRUE(exit_code.ok()) << exit_code.status();
  launched.exit_code = exit_code.value_or(-1);
  return launched;
}

ParallelLaunches::~ParallelLaunches() {
  for (const Job& job : jobs_) {
    if (job.pid > 0) {
      ::kill(job.pid, SIGKILL);  // its ranks do not survive it
      ::waitpid(job.pid, nullptr, 0);
    }
    if (job.result != nullptr) std::fclose(job.result);
  }
}

void ParallelLaunches::Add(const std::string& name,
                           std::function<LaunchedTests()> launch) {
  jobs_.push_back({name, std::move(launch)});
}

void ParallelLaunches::BeginSome() {
  for (; running_ < at_once_ && begun_ < jobs_.size(); ++begun_, ++running_) {
    Job& job = jobs_[begun_];
    job.result = std::tmpfile();
    TESSERA_CHECK(job.result != nullptr);
    std::fflush(nullptr);  // else the child would print it again
    job.pid = ::fork();
    TESSERA_CHECK(job.pid >= 0);
    if (job.pid > 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Write(job.launch(), job.result);
    std::_Exit(0);
  }
}

void ParallelLaunches::Collect() {
  for (Job& job : jobs_) {
    if (job.pid > 0 && ::waitpid(job.pid, nullptr, WNOHANG) == job.pid) {
      job.pid = -1;
      --running_;
    }
  }
}

LaunchedTests ParallelLaunches::Result(const std::string& name) {
  const auto job =
      absl::c_find_if(jobs_, [&](const Job& j) { return j.name == name; });
  TESSERA_CHECK(job != jobs_.end());
  while (job->result == nullptr || job->pid > 0) {
    BeginSome();
    absl::SleepFor(absl::Milliseconds(10));
    Collect();
  }
  BeginSome();
  return Read(job->result);
}

}  // namespace tessera
