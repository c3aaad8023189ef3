#include "framework/checkpoint/checkpoint_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "framework/base/file.h"
#include "framework/base/json.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Keys of a part.
constexpr char kFiles[] = "files";
constexpr char kCode[] = "code";
constexpr char kMessage[] = "message";

std::string PartPath(const std::string& folder, int rank) {
  return absl::StrCat(folder, "/", rank, ".part.json");
}

absl::Status Leave(const std::string& folder, int rank, const Json& part,
                   const WritePointHook& hook) {
  const std::string path = PartPath(folder, rank), unfinished = path + ".tmp";
  RETURN_IF_ERROR(RemoveTree(unfinished, hook));  // of an earlier attempt
  RETURN_IF_ERROR(WriteDurably(unfinished, DumpJson(part), hook));
  // Nothing fails once the leader may see it.
  return RenamePath(unfinished, path, hook);
}

}  // namespace

absl::Status AwaitRank(const CheckpointWriters& writers,
                       const std::function<bool()>& done,
                       absl::string_view message) {
  constexpr absl::Duration kLongest = absl::Milliseconds(200);
  for (absl::Duration pause = absl::Milliseconds(1); !done();
       pause = std::min(2 * pause, kLongest)) {
    if (writers.gone != nullptr && writers.gone()) {
      return absl::UnavailableError(message);
    }
    absl::SleepFor(pause);
  }
  return absl::OkStatus();
}

absl::Status LeavePart(const std::string& folder, int rank, const Json& files,
                       const WritePointHook& hook) {
  return Leave(folder, rank, {{kFiles, files}}, hook);
}

absl::Status LeaveFailure(const std::string& folder, int rank,
                          const std::vector<std::string>& files,
                          const absl::Status& why, const WritePointHook& hook) {
  for (const std::string& file : files) {
    RETURN_IF_ERROR(RemoveTree(file, hook));
  }
  return Leave(
      folder, rank,
      {{kCode, why.raw_code()}, {kMessage, std::string(why.message())}}, hook);
}

absl::StatusOr<Json> AwaitPart(const std::string& folder, int rank,
                               const CheckpointWriters& writers,
                               const WritePointHook& hook) {
  const std::string path = PartPath(folder, rank);
  Json part;
  const auto is_there = [&] {
    const absl::StatusOr<std::string> text = ReadFile(path);
    if (!text.ok()) return false;
    part = ParseJson(*text);
    return part.is_object();
  };
  RETURN_IF_ERROR(AwaitRank(
      writers, is_there,
      absl::StrCat("rank ", rank, " has not finished its files in ", folder,
                   "; it may never, because a rank has ended")));
  if (!part.contains(kFiles)) {
    return absl::Status(
        static_cast<absl::StatusCode>(part.value(kCode, 2)),
        absl::StrCat("rank ", rank, ": ", part.value(kMessage, "")));
  }
  RETURN_IF_ERROR(RemoveTree(path, hook));
  return part[kFiles];
}

}  // namespace tessera
