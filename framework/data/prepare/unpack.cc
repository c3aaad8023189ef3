#include "framework/data/prepare/unpack.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/memory/memory.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "framework/base/file.h"
#include "framework/base/file_descriptor.h"
#include "framework/base/json.h"
#include "framework/base/log.h"
#include "framework/base/shorten.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"
#include "framework/data/prepare/byte_stream.h"
#include "framework/data/prepare/parallel_for.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Divides the documents of JSON lines: a byte that UTF-8, and so JSON, lacks.
constexpr absl::string_view kDocumentEnd = "\xff";

// Limits the memory for a line, for example of a file that is a single line.
constexpr size_t kMaxLineBytes = 64 << 20;

// Bytes of lines that a thread parses between synchronizations.
constexpr size_t kBytesPerThread = 1 << 20;

// How an input is stored.
struct InputKind {
  bool is_json_lines = false;
  Compression compression = Compression::kNone;

  bool is_plain_text() const {
    return !is_json_lines && compression == Compression::kNone;
  }
};

absl::StatusOr<InputKind> KindOf(absl::string_view input, InputFormat format) {
  InputKind kind = {.is_json_lines = format == InputFormat::kJsonLines};
  if (input == kStandardInput) {
    kind.compression = Compression::kDetect;
    return kind;
  }
  absl::string_view name = input;
  if (absl::ConsumeSuffix(&name, ".gz")) kind.compression = Compression::kGzip;
  if (absl::ConsumeSuffix(&name, ".zst")) kind.compression = Compression::kZstd;
  if (format != InputFormat::kAuto) return kind;
  kind.is_json_lines =
      absl::EndsWith(name, ".jsonl") || absl::EndsWith(name, ".ndjson");
  if (absl::EndsWith(name, ".json")) {
    return absl::InvalidArgumentError(absl::StrCat(
        input,
        ": the name does not say whether each line is a document in "
        "JSON; set --format=jsonl if so, else --format=text"));
  }
  return kind;
}

// Writes a text file.
class TextWriter {
 public:
  static absl::StatusOr<std::unique_ptr<TextWriter>> Create(
      const std::string& path) {
    const int descriptor =
        open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0) {
      return SystemError(errno, absl::StrCat("cannot create ", path));
    }
    return absl::WrapUnique(new TextWriter(path, descriptor));
  }

  absl::Status Append(absl::string_view text) {
    absl::StrAppend(&buffer_, text);
    return buffer_.size() < kBufferBytes ? absl::OkStatus() : Flush();
  }
  absl::Status Flush() {
    const absl::Status status = WriteAll(descriptor_.fd(), buffer_, path_);
    buffer_.clear();
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat(status.message(),
                                     "; input that is not a plain text file "
                                     "is unpacked next to the output folder"));
  }

 private:
  static constexpr size_t kBufferBytes = 1 << 20;

  TextWriter(std::string path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}

  const std::string path_;
  const FileDescriptor descriptor_;
  std::string buffer_;
};

// The text of a line of JSON; nothing for an empty line. The error says what is
// wrong with the line.
absl::StatusOr<std::string> TextOf(absl::string_view line,
                                   const std::string& field) {
  if (absl::StripAsciiWhitespace(line).empty()) return "";
  Json json = ParseJson(line);
  if (json.is_discarded() && absl::StartsWith(line, "{")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "is no JSON: ", Shorten(line),
        "; a line is one object in UTF-8, at most ", kMaxJsonDepth,
        " levels deep and without half a surrogate pair such as \\ud800"));
  }
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "must be a JSON object with the field '", field, "'; is ",
        Shorten(line), "; if the input is text, set --format=text"));
  }
  const auto found = json.find(field);
  if (found == json.end()) {
    const auto name = [](std::string* out, const auto& item) {
      absl::StrAppend(out, "'", item.first, "'");
    };
    return absl::InvalidArgumentError(absl::StrCat(
        "must have the field '", field, "'; has ",
        json.empty() ? "no field"
                     : Shorten(absl::StrJoin(
                           json.get_ref<const Json::object_t&>(), ", ", name)),
        "; set --field to the name of the field with the text"));
  }
  if (!found->is_string()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the field '", field, "' must be a string; is ", Shorten(found->dump()),
        "; set --field to the name of the field with the text"));
  }
  std::string text = std::move(found->get_ref<std::string&>());
  if (absl::StrContains(text, '\0')) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the field '", field, "' contains a NUL (\\u0000); remove it"));
  }
  return text;
}

// Writes the texts of the lines of an input.
class LineUnpacker {
 public:
  LineUnpacker(std::string name, const UnpackOptions* options,
               TextWriter* writer)
      : name_(std::move(name)), options_(*options), writer_(*writer) {}

  // Adds the next bytes of the input.
  absl::Status Append(absl::string_view bytes) {
    while (!bytes.empty()) {
      const size_t end = bytes.find('\n');
      const absl::string_view piece = bytes.substr(0, end);
      if (line_.size() + piece.size() > kMaxLineBytes) {
        return absl::InvalidArgumentError(absl::StrCat(
            name_, ":", lines_before_ + lines_.size() + 1, ": is longer than ",
            kMaxLineBytes,
            " bytes, the limit for a line; each line must be one document"));
      }
      absl::StrAppend(&line_, piece);
      if (end == absl::string_view::npos) return absl::OkStatus();
      bytes.remove_prefix(end + 1);
      RETURN_IF_ERROR(EndLine());
    }
    return absl::OkStatus();
  }
  absl::Status Finish() {
    if (!line_.empty()) RETURN_IF_ERROR(EndLine());
    RETURN_IF_ERROR(WriteLines());
    if (skipped_ > 0) {
      LogWarning(absl::StrCat("skipped ", skipped_, " of ", lines_before_,
                              " lines of ", name_, ", which have no text"));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status EndLine() {
    lines_bytes_ += line_.size() + sizeof(line_);  // lines may be empty
    lines_.push_back(std::exchange(line_, ""));
    return lines_bytes_ < kBytesPerThread * options_.threads ? absl::OkStatus()
                                                             : WriteLines();
  }
  absl::Status WriteLines() {
    std::vector<absl::StatusOr<std::string>> texts(lines_.size());
    ParallelFor(options_.threads, texts.size(), [&](size_t i) {
      texts[i] = TextOf(lines_[i], options_.field);
    });
    for (const absl::StatusOr<std::string>& text : texts) {
      ++lines_before_;
      if (!text.ok()) {
        RETURN_IF_ERROR(Skip(text.status()));
        continue;
      }
      RETURN_IF_ERROR(writer_.Append(*text));
      RETURN_IF_ERROR(writer_.Append(kDocumentEnd));
    }
    lines_.clear();
    lines_bytes_ = 0;
    return absl::OkStatus();
  }
  // Skips line `lines_before_`, if it may, and logs the first of them.
  absl::Status Skip(const absl::Status& why) {
    const std::string message =
        absl::StrCat(name_, ":", lines_before_, ": ", why.message());
    if (!options_.skip_invalid) {
      return absl::InvalidArgumentError(
          absl::StrCat(message, "; or set --skip_invalid to skip such lines"));
    }
    if (skipped_++ == 0) LogWarning(absl::StrCat("skipped ", message));
    return absl::OkStatus();
  }

  const std::string name_;
  const UnpackOptions& options_;
  TextWriter& writer_;
  std::string line_;                // so far
  std::vector<std::string> lines_;  // complete, not yet written
  size_t lines_bytes_ = 0;
  int64_t lines_before_ = 0;  // number of lines before `lines_`
  int64_t skipped_ = 0;
};

// Makes the text file at `path` of an input. Calls `report` with the fraction
// that is done.
absl::Status UnpackInput(const std::string& input, const InputKind& kind,
                         const std::string& path, const UnpackOptions& options,
                         absl::FunctionRef<void(double)> report) {
  ASSIGN_OR_RETURN(
      const std::unique_ptr<ByteStream> stream,
      ByteStream::Open(input, kind.compression, options.check_stop));
  ASSIGN_OR_RETURN(const std::unique_ptr<TextWriter> writer,
                   TextWriter::Create(path));
  LineUnpacker lines(stream->name(), &options, writer.get());
  for (bool is_first = true;; is_first = false) {
    ASSIGN_OR_RETURN(const absl::string_view bytes, stream->Next());
    if (bytes.empty()) break;
    if (is_first && input == kStandardInput &&
        options.format == InputFormat::kAuto && bytes[0] == '{') {
      return absl::InvalidArgumentError(
          "standard input begins with '{': set --format=jsonl if each line is "
          "a document in JSON, else --format=text");
    }
    RETURN_IF_ERROR(kind.is_json_lines ? lines.Append(bytes)
                                       : writer->Append(bytes));
    report(stream->fraction());
  }
  if (kind.is_json_lines) RETURN_IF_ERROR(lines.Finish());
  return writer->Flush();
}

}  // namespace

absl::StatusOr<InputFormat> InputFormatFromName(absl::string_view name) {
  if (name == "auto") return InputFormat::kAuto;
  if (name == "text") return InputFormat::kText;
  if (name == "jsonl") return InputFormat::kJsonLines;
  return absl::InvalidArgumentError(
      absl::StrCat("must be auto, text or jsonl; is '", name, "'"));
}

absl::StatusOr<absl::flat_hash_map<std::string, UnpackedText>> Unpack(
    const std::vector<std::string>& inputs, const std::string& folder,
    const UnpackOptions& options) {
  std::vector<std::pair<std::string, InputKind>> packed;
  bool has_json_lines = false;
  for (const std::string& input : inputs) {
    ASSIGN_OR_RETURN(const InputKind kind, KindOf(input, options.format));
    has_json_lines |= kind.is_json_lines;
    if (!kind.is_plain_text()) packed.emplace_back(input, kind);
  }
  if (!has_json_lines && options.field != UnpackOptions().field) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--field is '", options.field,
        "', but no input is JSON lines (.jsonl, .ndjson); set --format=jsonl "
        "if each line is a document in JSON, else remove --field"));
  }
  absl::flat_hash_map<std::string, UnpackedText> texts;
  if (packed.empty()) return texts;
  if (options.check_stop) RETURN_IF_ERROR(options.check_stop());
  RETURN_IF_ERROR(MakeDirectories(folder));
  const std::string phase = absl::StrCat("unpacking ", packed.size(), " of ",
                                         inputs.size(), " inputs");
  Report(options.progress, phase, 0);
  for (const auto& [input, kind] : packed) {
    const double done = static_cast<double>(texts.size());
    UnpackedText& text = texts[input];
    text = {absl::StrCat(folder, "/", texts.size()),
            kind.is_json_lines ? std::string(kDocumentEnd) : options.separator};
    RETURN_IF_ERROR(
        UnpackInput(input, kind, text.path, options, [&](double fraction) {
          // 1 would end the phase.
          Report(options.progress, phase,
                 (done + 0.999 * fraction) / packed.size());
        }));
  }
  Report(options.progress, phase, 1);
  return texts;
}

}  // namespace tessera
