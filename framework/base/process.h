#ifndef FRAMEWORK_BASE_PROCESS_H_
#define FRAMEWORK_BASE_PROCESS_H_

#include <cstdio>

#include "absl/status/status.h"

namespace tessera {

// Call this first in main(). Sets up the process for any environment:
//   closed descriptors   0, 1 and 2 are opened on /dev/null, so that no file
//                        that the program opens becomes its stdout. Using them
//                        fails, as it does for a closed descriptor.
//   SIGPIPE, SIGXFSZ     ignored: a write to a pipe without a reader, or above
//                        the limit on file sizes, fails with EPIPE or EFBIG
//   exit                 reports an error of stdout; exit code 2 if it was 0
void PrepareProcess();

// Flushes `file`, for a result that a program prints piece by piece. After an
// error the stream is empty, and the program should end with that error.
absl::Status FlushResult(std::FILE* file);

// Flushes `console`, a stream that the program can do without. The first error
// is logged; after it, the stream is redirected to /dev/null, and the exit code
// ignores the error.
void FlushConsole(std::FILE* console);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_PROCESS_H_
