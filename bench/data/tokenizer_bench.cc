// Times a tokenizer.json on text files, on one thread:
//
//   tokenizer_bench --tokenizer=tokenizer.json [--ids=FILE] text.txt...
//
// Prints a line of JSON for each file. The time is that of a tokenizer that has
// encoded nothing yet: the median CPU time of --repeats, because other programs
// may share the machine. --ids writes the ids of all files as int32.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/base/file.h"
#include "framework/base/statistics.h"
#include "framework/base/status_macros.h"
#include "framework/data/tokenize/tokenizer.h"
#include "trainers/program_flags.h"
#include "trainers/version.h"

ABSL_FLAG(std::string, tokenizer, "", "a tokenizer.json");
ABSL_FLAG(std::string, ids, "", "the file for the ids; empty: none");
ABSL_FLAG(int, repeats, 5, "number of times that each file is encoded");

namespace tessera {
namespace {

double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

// Appends the ids of `text` to `ids_bytes`.
absl::Status Time(const std::string& path, const std::string& serialized,
                  std::string* ids_bytes) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  std::vector<double> seconds;
  std::vector<int32_t> ids;
  for (int i = 0; i < std::max(1, absl::GetFlag(FLAGS_repeats)); ++i) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                     LoadTokenizer(TokenizerKind::kByteLevelBpe, serialized,
                                   absl::GetFlag(FLAGS_tokenizer)));
    const double begin = CpuSeconds();
    ASSIGN_OR_RETURN(ids, tokenizer->Encode(text));
    seconds.push_back(CpuSeconds() - begin);
  }
  absl::PrintF(
      "{\"file\": \"%s\", \"bytes\": %d, \"tokens\": %d, "
      "\"mb_per_s\": %.2f}\n",
      path, text.size(), ids.size(),
      1e-6 * text.size() / *Median(std::move(seconds)));
  ids_bytes->append(reinterpret_cast<const char*>(ids.data()),
                    ids.size() * sizeof(int32_t));
  return absl::OkStatus();
}

absl::Status Run(const std::vector<std::string>& files) {
  const std::string path = absl::GetFlag(FLAGS_tokenizer);
  if (path.empty() || files.empty()) {
    return absl::InvalidArgumentError(
        "--tokenizer and a text file are required: tokenizer_bench "
        "--tokenizer=tokenizer.json text.txt");
  }
  ASSIGN_OR_RETURN(const std::string serialized, ReadFile(UserPath(path)));
  std::string ids;
  for (const std::string& file : files) {
    RETURN_IF_ERROR(Time(UserPath(file), serialized, &ids));
  }
  const std::string ids_path = absl::GetFlag(FLAGS_ids);
  if (ids_path.empty()) return absl::OkStatus();
  return WriteFileAtomically(UserPath(ids_path), ids);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgramWithArguments(
      argc, argv,
      {.usage = "times a tokenizer: tokenizer_bench --tokenizer=FILE text...",
       .version = absl::StrCat("tessera ", tessera::kTesseraVersion)},
      tessera::Run);
}
