#ifndef FRAMEWORK_DATA_PREPARE_BYTE_STREAM_H_
#define FRAMEWORK_DATA_PREPARE_BYTE_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/base/file_descriptor.h"

namespace tessera {

// The path of standard input.
inline constexpr char kStandardInput[] = "-";

enum class Compression {
  kNone,
  kGzip,    // one or more members
  kZstd,    // one or more frames
  kDetect,  // one of the above, by the first bytes
};

// Reads a file from its beginning to its end, and decompresses it, with about a
// megabyte in memory (for zstd also the frame's window, at most 2 GiB).
class ByteStream {
 public:
  // Opens a file or kStandardInput. `check_stop`, which may be empty, is called
  // before each read and ten times a second while a pipe has nothing to read;
  // its error ends Next().
  static absl::StatusOr<std::unique_ptr<ByteStream>> Open(
      const std::string& path, Compression compression,
      std::function<absl::Status()> check_stop);

  // The next bytes, valid until the next call; empty at the end. DataLoss names
  // the file if its compressed data is damaged or truncated, InvalidArgument if
  // it is not compressed as was said.
  absl::StatusOr<absl::string_view> Next();

  // The path, or "standard input".
  const std::string& name() const { return name_; }
  // The fraction of the file that was read; 0 for a pipe.
  double fraction() const;

  // A decompressor.
  class Decoder {
   public:
    virtual ~Decoder() = default;
    // Decompresses the beginning of `input`, and removes it there. Returns the
    // number of bytes written to `output`.
    virtual absl::StatusOr<size_t> Decode(absl::string_view* input,
                                          absl::Span<char> output) = 0;
    // Whether the compressed data may end here.
    virtual bool may_end() const = 0;
  };

 private:
  ByteStream(std::string name, int descriptor, int64_t size,
             Compression compression, std::function<absl::Status()> check_stop);
  absl::Status Fill();
  absl::Status AwaitInput() const;

  const std::string name_;
  const FileDescriptor descriptor_;
  const int64_t size_;  // of a regular file, else 0
  Compression compression_;
  const std::function<absl::Status()> check_stop_;

  std::vector<char> buffer_;  // for compressed bytes
  absl::string_view input_;   // those in `buffer_` that are not decompressed
  int64_t read_ = 0;          // bytes read from the file
  bool at_end_ = false;
  bool is_misnamed_ = false;          // by its first bytes
  std::unique_ptr<Decoder> decoder_;  // null for kNone
  std::vector<char> output_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_BYTE_STREAM_H_
