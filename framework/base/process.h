#ifndef FRAMEWORK_BASE_PROCESS_H_
#define FRAMEWORK_BASE_PROCESS_H_

#include <cstdio>

namespace tessera {

// Makes the process safe to work in, whatever started it; first in main().
//   closed descriptors   0, 1 and 2 are opened on /dev/null, so that no file
//                        of the program becomes its stdout. Using them fails,
//                        as using a closed one does.
//   SIGPIPE, SIGXFSZ     ignored: a write to a pipe without a reader, or above
//                        the limit on file sizes, fails with EPIPE or EFBIG
//   exit                 reports an error of stdout; exit code 2 if it was 0
void PrepareProcess();

// Flushes `console`, a stream that the program can do without. After the first
// error, which is logged, the stream leads to /dev/null, and the error does not
// count when the program ends.
void FlushConsole(std::FILE* console);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_PROCESS_H_
