// Limits how long idle OpenMP threads spin before they sleep. A program that
// links this file does so before anything else.
//
// LibTorch's OpenMP runtime, libgomp, makes a thread that waits for work or for
// the other threads spin 300,000 times (some 10 ms) before it sleeps. If other
// programs use the cores, the threads that are waited for are not running
// meanwhile, and training on a CPU takes several times as long. libgomp reads
// its settings when it is loaded, so this sets GOMP_SPINCOUNT and starts the
// program again, with the same process id. It does nothing if GOMP_SPINCOUNT or
// OMP_WAIT_POLICY is set, or with OMP_NUM_THREADS=1: a single thread waits for
// none.
//
// An entry of .preinit_array runs after the shared libraries are mapped and
// before their constructors, which take 0.6 s; starting again there costs 40
// ms. The C library is not initialised yet, so only system calls are safe.

#include <limits.h>
#include <unistd.h>

namespace {

// About 0.8 ms: longer than the gaps between the ops of a step, and shorter
// than the milliseconds for which the system runs another program. Measured in
// docs/experiments/openmp_waiting.
char kSpinCount[] = "GOMP_SPINCOUNT=20000";

constexpr int kMaxVariables = 4096;

// Whether `entry`, "NAME=value", sets the variable `name`.
bool Sets(const char* entry, const char* name) {
  while (*name != '\0' && *entry == *name) ++entry, ++name;
  return *name == '\0' && *entry == '=';
}

bool IsOneThread(const char* entry) {
  const char* expected = "OMP_NUM_THREADS=1";
  while (*expected != '\0' && *entry == *expected) ++entry, ++expected;
  return *expected == '\0' && *entry == '\0';
}

void StartAgainWithSpinCount(int /*argc*/, char** argv, char** environment) {
  char* variables[kMaxVariables];
  int count = 0;
  for (; environment[count] != nullptr; ++count) {
    if (Sets(environment[count], "GOMP_SPINCOUNT") ||
        Sets(environment[count], "OMP_WAIT_POLICY") ||
        IsOneThread(environment[count]) || count + 2 == kMaxVariables) {
      return;
    }
    variables[count] = environment[count];
  }
  variables[count++] = kSpinCount;
  variables[count] = nullptr;
  // The real path, so that the process keeps its name.
  char program[PATH_MAX + 1];
  const ssize_t length = ::readlink("/proc/self/exe", program, PATH_MAX);
  if (length <= 0) return;
  program[length] = '\0';
  // Returns only if it fails; then the program runs as it is.
  ::execve(program, argv, variables);
}

// The sanitizers are not initialised there.
#ifndef __SANITIZE_ADDRESS__
__attribute__((section(".preinit_array"), used)) void (*const start_again)(
    int, char**, char**) = StartAgainWithSpinCount;
#endif

}  // namespace
