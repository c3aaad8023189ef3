#ifndef FRAMEWORK_DATA_PREPARE_UNPACK_H_
#define FRAMEWORK_DATA_PREPARE_UNPACK_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/data/prepare/progress.h"

namespace tessera {

enum class InputFormat {
  // By the name: .jsonl and .ndjson are kJsonLines, .json is refused because it
  // may be either, others are kText.
  kAuto,
  kText,
  kJsonLines,  // each line is a JSON object, whose text is a document
};

// "auto", "text" or "jsonl".
absl::StatusOr<InputFormat> InputFormatFromName(absl::string_view name);

struct UnpackOptions {
  InputFormat format = InputFormat::kAuto;
  std::string field = "text";  // of a JSON object: the one with the text
  std::string separator;       // of documents in text
  bool skip_invalid = false;   // skip, and log, lines without a text
  int threads = 1;
  ProgressSink progress;
  // Called before the folder is created and several times a second: an error
  // stops the work. May be empty.
  std::function<absl::Status()> check_stop;
};

// A text file made from an input.
struct UnpackedText {
  std::string path;
  std::string separator;
};

// Makes text files, in a new folder, of those `inputs` that are not plain text
// files: standard input (kStandardInput of byte_stream.h), JSON lines, and
// files that are compressed (.gz, .zst; standard input by its first bytes).
// Reads each input once, with a few megabytes per thread in memory and at least
// one line. Creates no folder if there are no such inputs. Returns the text
// files by input.
//
// InvalidArgument names input and line, or the field if there are no JSON
// lines; DataLoss the damaged input.
absl::StatusOr<absl::flat_hash_map<std::string, UnpackedText>> Unpack(
    const std::vector<std::string>& inputs, const std::string& folder,
    const UnpackOptions& options);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_UNPACK_H_
