#ifndef FRAMEWORK_OBSERVE_TRACE_GZIP_FILE_H_
#define FRAMEWORK_OBSERVE_TRACE_GZIP_FILE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/base/file_descriptor.h"

namespace tessera {

// Writes a gzip file (RFC 1952) piece by piece, in constant memory.
//
//   ASSIGN_OR_RETURN(auto file, GzipFile::Create(path));
//   RETURN_IF_ERROR(file->Write(text));  ...
//   return file->Close();
//
// What is at `path` is replaced at once, by Close(). A file that is not closed,
// or whose write failed, changes nothing. A pipe or device is written to
// instead, and a symbolic link stays.
class GzipFile {
 public:
  // Writes to a temporary sibling; only one process may write to `path`.
  static absl::StatusOr<std::unique_ptr<GzipFile>> Create(
      const std::string& path);
  ~GzipFile();
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  absl::Status Write(absl::string_view text);
  // Nothing may be written afterwards.
  absl::Status Close();

 private:
  struct Stream;

  GzipFile(std::string path, std::string written, int descriptor);
  // Compresses `text`; `last`: and ends the stream.
  absl::Status Deflate(absl::string_view text, bool last);

  const std::string path_;
  const std::string written_;  // a temporary sibling, or `path_` if in place
  FileDescriptor descriptor_;
  const std::unique_ptr<Stream> stream_;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_GZIP_FILE_H_
