#ifndef BENCH_STUDIES_STUDY_CONFIG_H_
#define BENCH_STUDIES_STUDY_CONFIG_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "bench/studies/study_config.pb.h"
#include "framework/base/violations.h"

namespace tessera {

// One combination of the axes' values.
struct StudyCell {
  // {"size", "small"}, {"context", "128"}: by axis, in their order.
  std::vector<std::pair<std::string, std::string>> labels;
  std::vector<std::string> configs, overrides;
  std::vector<std::string> study_overrides;  // of StudyConfig

  // "size=small context=128"; names the cell in its study.
  std::string Name() const;
  // Empty if the study has no such axis.
  absl::string_view Label(absl::string_view axis) const;
};

// A study that was read and checked.
struct Study {
  std::string name;  // "end_to_end": the file's, without folder and ".pbtxt"
  StudyConfig config;
  std::vector<StudyCell> cells;
};

// Every combination of the axes' values, the first axis slowest.
std::vector<StudyCell> CellsOf(const StudyConfig& config);

// Adds every rule of study_config.proto that `config` breaks.
void Validate(const StudyConfig& config, Violations violations);

// The study as text, with every default, and the study of such a text, which
// errors call `source`.
std::string PrintStudy(const Study& study);
absl::StatusOr<Study> ParseStudy(const std::string& text,
                                 const std::string& source);

// The numbers of the cells that have, for every axis of `filter`
// ("size=small,medium", "context=128"), one of the values given.
// InvalidArgument for an axis or a value that the study does not have, or if no
// cell is left.
absl::StatusOr<std::vector<int>> FilterCells(
    const Study& study, absl::Span<const std::string> filter);

}  // namespace tessera

#endif  // BENCH_STUDIES_STUDY_CONFIG_H_
