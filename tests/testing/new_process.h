#ifndef TESTS_TESTING_NEW_PROCESS_H_
#define TESTS_TESTING_NEW_PROCESS_H_

#include <string>

namespace tessera::testing {

// Runs one test of this program, "Suite.DISABLED_Test", in a new process: for
// what a process can do only once. The calling test fails with its output, or
// is skipped, if that test fails or is skipped.
void RunInNewProcess(const std::string& test);

}  // namespace tessera::testing

#endif  // TESTS_TESTING_NEW_PROCESS_H_
