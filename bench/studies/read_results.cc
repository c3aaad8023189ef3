#include "bench/studies/read_results.h"

#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bench/studies/study_config.h"
#include "framework/base/file.h"
#include "framework/base/json.h"
#include "framework/base/shorten.h"
#include "framework/base/status_macros.h"
#include "framework/observe/report/figures.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// StudyCell::Name() of a record's cell.
std::string NameOf(const Json& labels) {
  StudyCell cell;
  for (const auto& [axis, label] : labels.items()) {
    cell.labels.emplace_back(axis, label.get<std::string>());
  }
  return cell.Name();
}

// Whether `record` has what readers of results rely on (study_results.h).
bool IsRecord(const Json& record) {
  const std::string type = TextAt(record, "type");
  if (type == "study") return !TextAt(record, "study").empty();
  if (type != "cell") return !type.empty();
  const Json* const cell = FigureAt(record, "cell");
  const std::string status = TextAt(record, "status");
  const Json* const figures = FigureAt(record, "figures");
  return cell != nullptr && cell->is_object() &&
         absl::c_all_of(*cell,
                        [](const Json& label) { return label.is_string(); }) &&
         !status.empty() &&
         (status != "OK" || (figures != nullptr && figures->is_object()));
}

}  // namespace

absl::StatusOr<std::vector<Json>> ReadResults(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(folder + kResultsFile));
  std::vector<Json> records;
  std::map<std::string, size_t> place;  // of a cell's record, or of a type's
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  lines.pop_back();  // empty, or an unfinished last line
  for (size_t i = 0; i < lines.size(); ++i) {
    Json record = ParseJson<Json>(lines[i]);
    if (!IsRecord(record)) {
      return absl::DataLossError(absl::StrCat(
          folder, kResultsFile, ":", i + 1, ": is no record of a study: '",
          Shorten(lines[i]), "'; remove the line to use the others"));
    }
    std::string key = TextAt(record, "type");
    if (key == "cell") absl::StrAppend(&key, " ", NameOf(record["cell"]));
    const auto [found, added] = place.emplace(std::move(key), records.size());
    if (added) {
      records.push_back(std::move(record));
    } else {
      records[found->second] = std::move(record);
    }
  }
  if (records.empty() || TextAt(records[0], "type") != "study") {
    return absl::DataLossError(absl::StrCat(
        folder, kResultsFile, " does not begin with the study's record"));
  }
  return records;
}

}  // namespace tessera
