#ifndef FRAMEWORK_DIST_LINE_PIPE_H_
#define FRAMEWORK_DIST_LINE_PIPE_H_

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/base/file_descriptor.h"

namespace tessera {

enum class OutputKind {
  kConsole,  // the children can do without it
  kResult,   // what the children were started for
};

// Copies the output of a child process to a file of this process, line by line
// and with a label, so that lines of several children do not mix.
class LinePipe {
 public:
  // `file` outlives the pipe.
  static absl::StatusOr<std::unique_ptr<LinePipe>> Create(
      absl::string_view label, std::FILE* file, OutputKind kind);

  // In the child, after fork(): redirects descriptor `fd` (1 or 2) to the pipe.
  void BecomeInChild(int fd) const;
  // In the parent, after fork().
  void CloseWriteEnd() { write_end_.Close(); }

  // The descriptor to poll while open(), that is, until all writers have closed
  // it.
  int fd() const { return read_end_.fd(); }
  bool open() const { return read_end_.is_open(); }

  // Forwards what has arrived, without waiting: whole lines, and the remainder
  // at the end. Lines that cannot be written to `file` are dropped, and the
  // children continue; those of a console with a warning (FlushConsole()),
  // those of a result are an error.
  void Drain();
  // The first error of writing a result.
  const absl::Status& status() const { return status_; }

 private:
  LinePipe(absl::string_view label, std::FILE* file, OutputKind kind,
           int read_fd, int write_fd)
      : label_(label),
        file_(file),
        kind_(kind),
        read_end_(read_fd),
        write_end_(write_fd) {}
  void Pass(absl::string_view text);
  void Print(absl::string_view line);

  const std::string label_;
  std::FILE* const file_;
  const OutputKind kind_;
  absl::Status status_;
  FileDescriptor read_end_, write_end_;
  std::string partial_line_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DIST_LINE_PIPE_H_
